"""How often outcomes are foreseen is told apart by the length of the guesses."""

from __future__ import annotations

import pytest

from outrider.acceptance.hit_rates import LEAST, PRIOR_LENGTH, PRIOR_RATE, HitRates


def rates(rates_by_length: dict[int, float], looks: int = 200) -> HitRates:
    found = HitRates()
    for length, rate in rates_by_length.items():
        for turn in range(looks):
            found.observe(length, (turn * 7) % 10 < rate * 10)
    return found


def test_before_anything_is_known_longer_guesses_are_foreseen_less_often() -> None:
    found = HitRates()
    assert found.rate(PRIOR_LENGTH) == pytest.approx(PRIOR_RATE)
    assert [found.rate(length) for length in range(1, 9)] == sorted((found.rate(n) for n in range(1, 9)), reverse=True)
    assert found.rate(63) >= LEAST


def test_what_a_length_was_seen_to_have_is_what_it_has() -> None:
    found = rates({2: 0.9, 5: 0.6})
    assert found.rate(2) == pytest.approx(0.9, abs=0.03)
    assert found.rate(5) == pytest.approx(0.6, abs=0.06)


def test_of_others_it_is_between_and_beyond_in_proportion() -> None:
    """A guess of 5 misses in 0.4 of the cases: one of 2 would in about 0.16."""
    found = rates({5: 0.6})
    assert found.rate(2) == pytest.approx(0.84, abs=0.03)
    assert found.rate(8) == pytest.approx(0.36, abs=0.06)


def test_it_forgets() -> None:
    found = rates({3: 1.0})
    for _ in range(300):
        found.observe(3, False)
    assert found.rate(3) < 0.2
