"""Equality with transformers on the tokenizers of real models, where their files are present."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from outrider.text import Message, Tokenizer, export_chat, fingerprint
from tests.unit.text.test_detokenizer import stream

HOME = Path(os.environ.get("OUTRIDER_TEST_MODELS", Path.home() / ".cache/outrider-test-models"))
NAMES = ("smollm2-135m", "qwen2.5-coder-0.5b")
TEXTS = (
    "",
    " ",
    "Hello world",
    "  leading and trailing  \n\n\t x",
    "def f(x: int) -> str:\r\n\treturn f'{x!r}'  # naïve",
    "世界您好,今天天气很好。",
    "emoji 👨‍👩‍👧 👋🏽 🇩🇪, combining e\u0301 n\u0303, नमस्ते",
    "<|im_start|>user\nspecials written out<|im_end|> <|endoftext|>",
    "12345 67.89 1,000,000 I'm you're WE'LL",
    "\ufffd \u200b \u00a0 \x00",
)
CONVERSATIONS: tuple[list[Message], ...] = (
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": " and <b>世界</b>? "},
    ],
)


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Tokenizer]:
    """(transformers' tokenizer, ours) of one model."""
    file = HOME / f"{request.param}.gguf"
    if not file.exists():
        pytest.skip(f"{file} is not there")
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(HOME), gguf_file=file.name, local_files_only=True)
    special = {name: getattr(theirs, name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    files = {
        "tokenizer.json": theirs.backend_tokenizer.to_str().encode(),
        "chat.json": export_chat(theirs.chat_template, special),
    }
    return theirs, Tokenizer.from_files(files)


@pytest.mark.parametrize("text", TEXTS)
def test_encoding_and_decoding_equal_those_of_transformers(pair: tuple[Any, Tokenizer], text: str) -> None:
    theirs, ours = pair
    for add_special_tokens in (True, False):
        ids = theirs.encode(text, add_special_tokens=add_special_tokens)
        assert ours.encode(text, add_special_tokens=add_special_tokens) == ids
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
            assert "".join(stream(ours, ids, skip_special_tokens=skip)) == expected


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_chats_equal_those_of_transformers(pair: tuple[Any, Tokenizer], messages: list[Message]) -> None:
    theirs, ours = pair
    assert ours.render_chat(messages) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(messages) == ids


def test_random_ids_stream_to_what_transformers_decodes(pair: tuple[Any, Tokenizer]) -> None:
    theirs, ours = pair
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(ours.vocabulary_size) for _ in range(rng.randrange(40))]
        assert "".join(stream(ours, ids)) == theirs.decode(ids, skip_special_tokens=True)


def test_the_vocabulary_is_theirs(pair: tuple[Any, Tokenizer]) -> None:
    theirs, ours = pair
    assert ours.vocabulary_size == len(theirs)
    assert list(ours.tokens) == theirs.convert_ids_to_tokens(range(len(theirs)))
    assert len(fingerprint(ours.tokens)) == 64
