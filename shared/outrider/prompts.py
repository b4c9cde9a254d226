"""Prompt files, as distillation and benchmarks read them: one JSON object a line, or plain text, one prompt a line."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import InvalidArgument
from outrider.text.chat import Message
from outrider.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """Something to answer: chat messages, or a raw text to go on from."""

    messages: tuple[Message, ...]
    text: str
    category: str

    def token_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """As the target reads it."""
        return tuple(tokenizer.encode_chat(self.messages) if self.messages else tokenizer.encode(self.text))


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a .txt, .jsonl or .jsonl.gz file. Raises InvalidArgument that names the line and what it lacks.

    An object has `messages`, or `prompt` (one user message), or `raw` (a text to go on from), or `turns` (Spec-Bench,
    MT-Bench; the first is taken), and perhaps `category`.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidArgument("prompts", str(path), f"a readable text file ({error})") from error
    parse = _parse_text if path.suffix == ".txt" else _parse_json
    lines = enumerate(text.split("\n"), 1)
    found = [parse(line.strip(), f"{path}:{number}") for number, line in lines if line.strip()]
    if not found:
        raise InvalidArgument("prompts", str(path), "a file with at least one prompt")
    return found


def _parse_text(line: str, place: str) -> Prompt:
    return Prompt((Message(role="user", content=line),), "", "")


def _parse_json(line: str, place: str) -> Prompt:
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(place, line[:60], f"one JSON object a line ({error})") from error
    if not isinstance(content, dict):
        raise InvalidArgument(place, line[:60], "a JSON object")
    category = str(content.get("category", ""))
    if isinstance(raw := content.get("raw"), str) and raw:
        return Prompt((), raw, category)
    messages = content.get("messages")
    if messages is None:
        turns = content.get("turns")
        user = content.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
        messages = [{"role": "user", "content": user}] if isinstance(user, str) and user else None
    if not isinstance(messages, list) or not _are_messages(messages):
        raise InvalidArgument(place, line[:60], "an object with messages, prompt, turns or raw")
    chat = tuple(Message(role=message["role"], content=message["content"]) for message in messages)
    return Prompt(chat, "", category)


def _are_messages(messages: list[Any]) -> bool:
    return bool(messages) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
        for message in messages
    )
