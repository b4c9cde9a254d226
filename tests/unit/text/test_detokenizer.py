"""Pieces joined are the text decoded at once; nothing incomplete comes out, nothing complete stays in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.text import Tokenizer
from tests.unit.text.tokenizers_made_here import KINDS, tokenizer

TEXTS = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from("aé世界您好🎉👋🏽\u200d\u0301\u0308नम\ufffd \n\u00a0"),
    ),
    max_size=40,
)
STRINGS = st.sampled_from(
    ["👨‍👩‍👧 family", "e\u0301a\u0308", "世界,你好", "  two  spaces ", "नमस्ते", "🇩🇪🏴‍☠️", "", " ", "\n\n", "�", "ÿþ"]
)


def stream(made: Tokenizer, ids: list[int], *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = made.detokenizer(skip_special_tokens=skip_special_tokens)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@pytest.mark.parametrize("skip_special_tokens", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_pieces_of_any_ids_join_to_the_whole(kind: str, skip_special_tokens: bool, data: st.DataObject) -> None:
    made = tokenizer(kind)
    # A few ids come often, so that runs of bytes, spaces and special tokens are common; two ids are unknown.
    ids = data.draw(st.lists(st.integers(0, made.vocabulary_size + 1), max_size=30))
    pieces = stream(made, ids, skip_special_tokens=skip_special_tokens)
    assert "".join(pieces) == made.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_several_tokens_at_once_give_what_they_give_one_by_one(kind: str, data: st.DataObject) -> None:
    """Whatever bytes they stand for, and wherever a chunk ends."""
    made = tokenizer(kind)
    at_once, one_by_one = made.detokenizer(), made.detokenizer()
    for chunk in data.draw(st.lists(st.lists(st.integers(0, made.vocabulary_size + 1), max_size=8), max_size=6)):
        assert at_once.push_all(chunk) == "".join(map(one_by_one.push, chunk))
    assert at_once.finish() == one_by_one.finish()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=st.one_of(TEXTS, STRINGS))
def test_pieces_of_a_text_join_to_the_whole(kind: str, text: str) -> None:
    made = tokenizer(kind)
    ids = made.encode(text)
    assert "".join(stream(made, ids)) == made.decode(ids)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=st.one_of(TEXTS, STRINGS))
def test_case_28_every_text_comes_back_and_no_piece_shows_half_a_character(kind: str, text: str) -> None:
    made = tokenizer(kind)
    text = text.replace("\ufffd", "").replace("▁", "")
    pieces = stream(made, made.encode(text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 421), max_size=30))
def test_bytes_wait_no_longer_than_their_character(ids: list[int]) -> None:
    """After each push all text is out but the start of one character, at most three bytes."""
    made = tokenizer("byte_level")
    detokenizer = made.detokenizer()
    text = ""
    for count, token_id in enumerate(ids, start=1):
        text += detokenizer.push(token_id)
        whole = made.decode(ids[:count])
        assert whole.startswith(text)
        held = whole[len(text) :]
        assert held.strip("\ufffd") == ""
        assert len(held) <= 3


def test_an_emoji_in_bytes_comes_out_as_one_character() -> None:
    made = tokenizer("byte_fallback")
    ids = made.encode("a🎉b", add_special_tokens=False)
    assert [made.tokens[token_id] for token_id in ids] == ["▁", "a", "<0xF0>", "<0x9F>", "<0x8E>", "<0x89>", "b"]
    assert stream(made, ids) == ["", "a", "", "", "", "", "🎉b", ""]


def test_an_unfinished_character_is_flushed_at_the_end() -> None:
    made = tokenizer("byte_level")
    *start, _ = made.encode("a🐢", add_special_tokens=False)
    assert stream(made, start)[-1] == "\ufffd"
    assert stream(made, [])[-1] == ""


def test_the_text_of_a_real_replacement_character_is_not_held_back() -> None:
    made = tokenizer("byte_level")
    ids = made.encode("\ufffd", add_special_tokens=False)
    assert "".join(stream(made, ids)[:-1]) == "\ufffd"


def test_two_streams_do_not_share_state() -> None:
    made = tokenizer("byte_level")
    first, second = made.detokenizer(), made.detokenizer()
    ids = made.encode("🐢", add_special_tokens=False)
    assert "".join(part for token_id in ids for part in (first.push(token_id), second.push(token_id))) == "🐢🐢"
