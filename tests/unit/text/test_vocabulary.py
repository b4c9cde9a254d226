"""Fingerprints and differences of vocabularies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.text import Difference, fingerprint, first_difference, tokens_by_id

TOKENS = st.lists(st.text(max_size=4), max_size=8)


def test_tokens_by_id_leaves_holes() -> None:
    assert tokens_by_id({"b": 3, "a": 0}) == ["a", "", "", "b"]
    assert tokens_by_id({}) == []


def test_the_fingerprint_is_pinned() -> None:
    """It travels between versions: a change of it is a change of the protocol."""
    assert fingerprint(["a", "", "ü"]) == "19403139e401e70b6643ec22fcbc84ef2f386c29a5b5f1e1f94d82fc5ea0fe96"
    assert fingerprint([]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@given(left=TOKENS, right=TOKENS)
def test_fingerprints_agree_exactly_when_the_tokens_do(left: list[str], right: list[str]) -> None:
    def used(tokens: list[str]) -> list[tuple[int, str]]:
        return [(token_id, token) for token_id, token in enumerate(tokens) if token]

    assert (fingerprint(left) == fingerprint(right)) == (used(left) == used(right))


def test_boundaries_between_tokens_count() -> None:
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])


def test_case_19_a_longer_vocabulary_with_the_same_start_is_no_difference() -> None:
    assert first_difference(["a", "b"], ["a", "b", "[PAD0]", "[PAD1]"]) is None
    assert first_difference(["a", "", "c"], ["a", "b", "c"]) is None


def test_case_20_the_first_differing_id_is_named() -> None:
    difference = first_difference(["a", "b", "c", "d"], ["a", "b", "x", "y"])
    assert difference == Difference(2, "c", "x")
    assert str(difference) == "token 2 is 'c' in one vocabulary and 'x' in the other"
