"""Prompt lookup: what is proposed, and that the index is never worth more than the history it was built from."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.ngram import NgramIndex
from outrider.acceptance.proposal import NO_PROPOSAL, Source


def proposed(tokens, max_tokens=8, **sizes):
    return NgramIndex(tokens, **sizes).propose(max_tokens).tree.tokens


def test_copies_what_followed_the_suffix_before():
    proposal = NgramIndex([1, 2, 3, 4, 5, 9, 1, 2]).propose(3)
    assert proposal.tree.tokens == (3, 4, 5)
    assert proposal.tree.is_chain
    assert proposal.source is Source.NGRAM
    assert proposal.q == ()


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4], [1, 2, 3, 1, 4, 2]])
def test_nothing_seen_before_is_no_proposal(tokens):
    assert NgramIndex(tokens).propose(5) is NO_PROPOSAL


def test_no_room_is_no_proposal():
    assert NgramIndex([1, 2, 3, 1, 2]).propose(0) is NO_PROPOSAL


def test_the_longest_suffix_wins_over_a_more_recent_shorter_one():
    tokens = [7, 1, 2, 30, 8, 1, 2, 40, 7, 1, 2]
    assert proposed(tokens, 1, min_n=2, max_n=3) == (30,)
    assert proposed(tokens, 1, min_n=2, max_n=2) == (40,)


@pytest.mark.parametrize(
    ("tokens", "matched"),
    [([1, 2, 3], 0), ([1, 2, 9, 1, 2], 2), ([0, 1, 2, 9, 0, 1, 2], 3), ([7, 0, 1, 2, 9, 7, 0, 1, 2], 4), ([4] * 9, 4)],
)
def test_matched_is_the_length_of_the_suffix_that_was_found(tokens, matched):
    assert NgramIndex(tokens).matched == matched


def test_the_most_recent_occurrence_wins():
    assert proposed([1, 2, 30, 1, 2, 40, 1, 2], 1) == (40,)


def test_a_copy_that_reaches_the_end_goes_on_in_its_period():
    assert proposed([5, 1, 2, 3, 1, 2, 3, 1, 2], 7, max_n=2) == (3, 1, 2, 3, 1, 2, 3)
    assert proposed([4, 4, 4], 5) == (4, 4, 4, 4, 4)


def naive_proposal(tokens: list[int], max_tokens: int, min_n: int, max_n: int) -> tuple[int, ...]:
    for n in range(max_n, min_n - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if len(tokens) > n and tokens[start : start + n] == tokens[-n:]:
                whole = list(tokens)
                for offset in range(max_tokens):
                    whole.append(whole[start + n + offset])
                return tuple(whole[len(tokens) :])
    return ()


histories = st.lists(st.integers(0, 3), max_size=40)


@given(histories, st.integers(0, 6), st.integers(1, 3), st.integers(0, 2))
def test_equals_a_search_through_the_whole_history(tokens, max_tokens, min_n, more):
    assert proposed(tokens, max_tokens, min_n=min_n, max_n=min_n + more) == naive_proposal(
        tokens, max_tokens, min_n, min_n + more
    )


@given(histories, histories, histories, st.data())
def test_truncating_leaves_no_trace(first, dropped, second, data):
    index = NgramIndex(first)
    cut = data.draw(st.integers(0, len(first)))
    index.extend(dropped)
    index.truncate(cut)
    index.extend(second)
    fresh = NgramIndex(first[:cut] + second)
    assert len(index) == len(fresh)
    assert index.propose(5) == fresh.propose(5)
    assert index._follower == fresh._follower


def test_a_proposal_does_not_search_a_long_history():
    """A scan of 100,000 tokens takes milliseconds; a look-up takes microseconds however long the history is."""
    index = NgramIndex(i * 7919 % 50021 for i in range(100_000))
    start = time.perf_counter()
    for _ in range(1000):
        index.extend([3])
        index.propose(8)
    assert time.perf_counter() - start < 1.0
