"""Estimated chances: they converge, forget, and tell the levels apart."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.estimate import MODEL_PRIOR, MOST, NGRAM_PRIOR, AcceptanceEstimate, AcceptancePool


def trained(chances: list[float], rounds: int, *, level: int = 1, seed: int = 3) -> AcceptanceEstimate:
    """After rounds in which token i stood with `chances[i]`, given the ones before it."""
    draw = random.Random(seed)
    estimate = AcceptanceEstimate(AcceptancePool(MODEL_PRIOR))
    for _ in range(rounds):
        accepted = 0
        while accepted < len(chances) and draw.random() < chances[accepted]:
            accepted += 1
        estimate.record(level, len(chances), accepted)
    return estimate


def test_it_starts_from_the_prior() -> None:
    assert AcceptanceEstimate(AcceptancePool(NGRAM_PRIOR)).chances(2, 3) == pytest.approx(NGRAM_PRIOR[1:4])


def test_it_converges_by_position() -> None:
    truth = [0.9, 0.5, 0.8]
    found = [trained(truth, 400, seed=seed).chances(1, 3) for seed in range(8)]
    for position, chance in enumerate(truth):
        assert sum(each[position] for each in found) / 8 == pytest.approx(chance, abs=0.08)


def test_tokens_after_the_first_that_fell_were_not_tried() -> None:
    estimate = AcceptanceEstimate(AcceptancePool(MODEL_PRIOR))
    for _ in range(50):
        estimate.record(1, 4, 1)
    first, second, third, _ = estimate.chances(1, 4)
    assert first > 0.9
    assert second < 0.1
    assert third > 0.3  # by the session's luck, not by failures of its own


def test_failures_at_the_first_level_lower_the_untried_ones() -> None:
    estimate = AcceptanceEstimate(AcceptancePool(NGRAM_PRIOR))
    for _ in range(10):
        estimate.record(2, 1, 0)
    assert estimate.chances(4, 1)[0] < NGRAM_PRIOR[3] / 2


def test_a_longer_match_is_another_level() -> None:
    estimate = AcceptanceEstimate(AcceptancePool(NGRAM_PRIOR))
    for _ in range(40):
        estimate.record(2, 1, 0)
        estimate.record(4, 1, 1)
    assert estimate.chances(2, 1)[0] < 0.1
    assert estimate.chances(4, 1)[0] > 0.9
    # Two tokens that stand after a match of 2 are a match of 4.
    assert estimate.chances(2, 3)[2] == estimate.chances(4, 1)[0]


def test_it_forgets() -> None:
    estimate = trained([0.0], 100)
    for _ in range(60):
        estimate.record(1, 1, 1)
    assert estimate.chances(1, 1)[0] > 0.85


def test_fading_lets_the_next_trials_count_for_more() -> None:
    kept, faded = trained([0.0], 100), trained([0.0], 100)
    faded.fade()
    for estimate in (kept, faded):
        estimate.record(1, 1, 1)
    assert faded.chances(1, 1)[0] > 1.5 * kept.chances(1, 1)[0]


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(0, 8)), max_size=80))
def test_chances_stay_chances(rounds: list[tuple[int, int, int]]) -> None:
    estimate = AcceptanceEstimate(AcceptancePool(NGRAM_PRIOR))
    for level, proposed, accepted in rounds:
        estimate.record(level, proposed, min(accepted, proposed))
    assert all(0.0 <= chance <= MOST for level in range(1, 12) for chance in estimate.chances(level, 8))


def seen_by_others(accepted: int) -> AcceptancePool:
    """After twenty sessions of twenty guesses of two tokens, of which so many stood."""
    pool = AcceptancePool(MODEL_PRIOR)
    for _ in range(20):
        one = AcceptanceEstimate(pool)
        for _ in range(20):
            one.record(1, 2, accepted)
    return pool


def test_what_all_sessions_saw_is_where_a_new_one_starts() -> None:
    pool = seen_by_others(accepted=0)
    assert AcceptanceEstimate(pool).chances(1, 1)[0] < 0.1


def test_a_session_unlike_the_others_is_soon_known_as_such() -> None:
    pool = seen_by_others(accepted=2)
    unlike = AcceptanceEstimate(pool)
    assert unlike.chances(1, 1)[0] > 0.9
    for _ in range(12):
        unlike.record(1, 2, 0)
    assert unlike.chances(1, 1)[0] < 0.35


def test_the_more_is_behind_what_all_saw_the_more_it_takes_to_leave_it() -> None:
    known, unknown = AcceptancePool(MODEL_PRIOR), AcceptancePool(MODEL_PRIOR)
    for place in range(400):
        known.record(0, float(place % 10 < 7))  # as the prior has it
    chances = []
    for pool in (known, unknown):
        one = AcceptanceEstimate(pool)
        one.record(1, 1, 0)
        chances.append(one.chances(1, 1)[0])
    assert chances[0] > chances[1] + 0.1
