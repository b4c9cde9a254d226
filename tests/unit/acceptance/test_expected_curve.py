"""Times that are known beforehand, about: observations correct them, and what was never seen is hoped for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.expected_curve import REMEMBERED, ExpectedCurve
from outrider.acceptance.step_times import StepTimes, place_of, rows_at


def rising(n: int) -> float:
    return 10.0 + n


def test_it_begins_with_what_is_expected() -> None:
    assert ExpectedCurve(rising).times(3) == (10.0, 11.0, 12.0, 13.0)


def test_what_is_seen_counts_the_more_the_more_often() -> None:
    curve = ExpectedCurve(rising)
    for _ in range(30):
        curve.observe(2, 15.0)
    assert curve.times(2)[2] == pytest.approx(15.0, abs=0.3)


def test_odd_times_do_no_harm() -> None:
    curve = ExpectedCurve(rising)
    for place in range(30):
        curve.observe(2, 150.0 if place % 5 == 0 else 12.0)
    assert curve.times(2)[2] == pytest.approx(12.0, abs=0.3)


def test_beyond_what_was_seen_the_rest_stays_and_before_it_it_shrinks() -> None:
    curve = ExpectedCurve(rising)
    for _ in range(32):
        curve.observe(10, 30.0)  # a rest of 10
    times = curve.times(20)
    assert times[20] - 30.0 == pytest.approx(10.0, abs=0.5)
    assert times[0] - 10.0 == pytest.approx(5.0, abs=0.5)


def test_what_is_old_is_forgotten() -> None:
    curve = ExpectedCurve(rising)
    for _ in range(32):
        curve.observe(0, 90.0)
    for _ in range(REMEMBERED):
        curve.observe(8, 18.0)
    assert curve.times(8)[0] == pytest.approx(10.0, abs=0.1)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0.0, 1e6)), max_size=60))
def test_times_never_fall_and_are_never_nothing(seen: list[tuple[int, float]]) -> None:
    curve = ExpectedCurve(rising)
    for n, milliseconds in seen:
        curve.observe(n, milliseconds)
    times = curve.times(30)
    assert all(0.0 < before <= after for before, after in pairwise(times))


def test_between_numbers_of_rows_times_lie_on_lines() -> None:
    times = StepTimes((1, 4, 8), (5.0, 8.0, 10.0))
    assert [times.at(rows) for rows in (0.5, 1, 2.5, 4, 6, 8, 16)] == [5.0, 5.0, 6.5, 8.0, 9.0, 10.0, 14.0]
    assert StepTimes((4,), (3.0,)).at(99) == 3.0


@given(st.floats(1.0, 1e5))
def test_places_tell_doublings_apart_alike(rows: float) -> None:
    assert place_of(2 * rows) - place_of(rows) == pytest.approx(4.0)
    assert rows_at(place_of(rows)) == pytest.approx(rows)
