"""Encoding, decoding and building a tokenizer from its files."""

from __future__ import annotations

import json

import pytest

from outrider.errors import InvalidArgument, ModelLoadError
from outrider.text import Tokenizer, export_chat
from tests.unit.text.tokenizers_made_here import KINDS, fast_tokenizer, tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_listed_by_id(kind: str) -> None:
    made, fast = tokenizer(kind), fast_tokenizer(kind)
    vocabulary = fast.get_vocab()
    assert made.vocabulary_size == len(made.tokens) == max(vocabulary.values()) + 1
    assert {token: token_id for token_id, token in enumerate(made.tokens) if token} == vocabulary


def test_special_tokens_are_added_unless_told_otherwise() -> None:
    made = tokenizer("byte_level")
    bos = made.tokens.index("<s>")
    assert made.encode("fox") == [bos, *made.encode("fox", add_special_tokens=False)]
    assert made.decode(made.encode("fox")) == "fox"
    assert made.decode(made.encode("fox"), skip_special_tokens=False) == "<s>fox"


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    """Files saved during training often carry a length limit; a prompt must never be cut silently."""
    content = json.loads(fast_tokenizer("byte_level").to_str())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "</s>",
    }
    made = Tokenizer.from_files({"tokenizer.json": json.dumps(content).encode(), "chat.json": export_chat(None, {})})
    text = "The quick brown fox jumps"
    assert made.encode(text) == tokenizer("byte_level").encode(text)


def test_a_lone_surrogate_is_the_callers_fault() -> None:
    with pytest.raises(InvalidArgument, match="valid Unicode"):
        tokenizer("byte_level").encode("a\ud83d")


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, r"lacks chat\.json, tokenizer\.json"),
        ({"tokenizer.json": b"{}", "chat.json": b"{}"}, "broken"),
        ({"tokenizer.json": b"\xff", "chat.json": b"{}"}, "broken"),
        ({"tokenizer.json": None, "chat.json": b'{"chat_template": 3}'}, "other than text"),
        ({"tokenizer.json": None, "chat.json": b"[]"}, "broken"),
    ],
)
def test_broken_files_are_a_load_error(files: dict[str, bytes | None], complaint: str) -> None:
    whole = fast_tokenizer("byte_level").to_str().encode()
    with pytest.raises(ModelLoadError, match=complaint):
        Tokenizer.from_files({name: whole if content is None else content for name, content in files.items()})
