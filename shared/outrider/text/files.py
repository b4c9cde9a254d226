"""The two files that carry a tokenizer between processes: `tokenizer.json` and `chat.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

TOKENIZER_FILE = "tokenizer.json"
"""A fast tokenizer, in the format of the `tokenizers` library."""

CHAT_FILE = "chat.json"
"""`{"chat_template": str | null, "bos_token": str | null, "eos_token": ..., "pad_token": ..., "unk_token": ...}`."""

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class Chat:
    """What `chat.json` says: the template, if the model has one, and the special tokens by name."""

    template: str | None
    special_tokens: Mapping[str, str]


def export_chat(template: str | None, special_tokens: Mapping[str, str | None]) -> bytes:
    """The content of `chat.json`."""
    named = {name: special_tokens.get(name) for name in SPECIAL_TOKENS}
    return json.dumps({"chat_template": template, **named}, ensure_ascii=False, sort_keys=True).encode()


def import_chat(content: bytes) -> Chat:
    """Read `chat.json`; raises ValueError or TypeError if it is something else."""
    values = json.loads(content)
    template = values.get("chat_template")
    present = {name: values[name] for name in SPECIAL_TOKENS if values.get(name) is not None}
    if not all(isinstance(text, str) for text in (template or "", *present.values())):
        raise TypeError(f"{CHAT_FILE} holds something other than text")
    return Chat(template, present)
