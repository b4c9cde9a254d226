"""How often siblings stand: learned by rank, by the session and by all, and never given up for good."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.siblings import SIBLINGS_PRIOR, SiblingEstimate, SiblingPool

RANKS = len(SIBLINGS_PRIOR)


def play(
    estimate: SiblingEstimate, chances: tuple[float, ...], falls: int, *, tried: int = RANKS, seed: int = 1
) -> None:
    """Falls of first choices, with so many siblings each."""
    draw = random.Random(seed)
    for _ in range(falls):
        stood = next((rank for rank in range(tried) if draw.random() < chances[rank]), None)
        estimate.record(tried, stood)


def test_it_starts_from_the_prior() -> None:
    assert SiblingEstimate(SiblingPool()).chances == pytest.approx(SIBLINGS_PRIOR)


def test_it_converges_by_rank_each_where_those_before_it_fell() -> None:
    truth = (0.6, 0.1, 0.4)
    found = []
    for seed in range(8):
        estimate = SiblingEstimate(SiblingPool())
        play(estimate, truth, 400, seed=seed)
        found.append(estimate.chances)
    for rank, chance in enumerate(truth):
        assert sum(each[rank] for each in found) / 8 == pytest.approx(chance, abs=0.06)


def test_a_new_session_starts_from_what_the_others_saw() -> None:
    pool = SiblingPool()
    for seed in range(10):
        play(SiblingEstimate(pool), (0.8, 0.05, 0.05), 60, seed=seed)
    first, second, _ = SiblingEstimate(pool).chances
    assert first > 0.7
    assert second < 0.15


def test_a_session_of_its_own_kind_outweighs_the_others() -> None:
    pool = SiblingPool()
    play(SiblingEstimate(pool), (0.8, 0.05, 0.05), 600)
    own = SiblingEstimate(pool)
    play(own, (0.1, 0.5, 0.05), 60)
    assert own.chances[0] < 0.3


def test_what_is_not_tried_is_forgotten_slowly() -> None:
    """Siblings that never stood are left out; they must not be so for ever."""
    estimate = SiblingEstimate(SiblingPool())
    play(estimate, (0.0,) * RANKS, 200)
    low = estimate.chances[0]
    assert low < 0.05
    play(estimate, (0.0,) * RANKS, 300, tried=0)
    assert estimate.chances[0] > 3 * low


def test_ranks_behind_the_one_that_stood_were_not_tried() -> None:
    estimate = SiblingEstimate(SiblingPool())
    play(estimate, (1.0,) * RANKS, 100)
    assert estimate.chances[0] > 0.9
    assert estimate.chances[1:] == pytest.approx(SIBLINGS_PRIOR[1:])


@given(st.lists(st.tuples(st.integers(0, RANKS), st.none() | st.integers(0, RANKS - 1)), max_size=60))
def test_chances_stay_chances(falls: list[tuple[int, int | None]]) -> None:
    estimate = SiblingEstimate(SiblingPool())
    for tried, stood in falls:
        estimate.record(tried, stood if stood is not None and stood < tried else None)
    assert all(0.0 <= chance <= 1.0 for chance in estimate.chances)
