"""Rounds cost what replicas say, by rows and sessions, until it is seen otherwise; what was not seen is hoped for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.expected_costs import GUESSES, HOPE, PATIENCE, PLAIN, ExpectedCosts
from outrider.acceptance.step_times import StepTimes, place_of

ROWS = (1, 8, 64, 512)
TOLD = StepTimes(ROWS, (4.0, 4.2, 6.0, 20.0), 8, StepTimes((8, 64), (4.4, 8.0)))


def at(sessions: float) -> ExpectedCosts:
    costs = ExpectedCosts(TOLD, StepTimes(ROWS, (0.5, 0.6, 1.0, 4.0)))
    costs.at_load(sessions, 1)
    return costs


def test_between_numbers_of_rows_times_lie_on_lines() -> None:
    times = StepTimes((1, 4, 8), (5.0, 8.0, 10.0))
    assert [times.at(rows) for rows in (0.5, 1, 2.5, 4, 6, 8, 16)] == [5.0, 5.0, 6.5, 8.0, 9.0, 10.0, 14.0]
    assert StepTimes((4,), (3.0,)).at(99) == 3.0
    told = replace(times, plain=StepTimes((1, 8), (4.0, 7.5)))
    assert [told.at(rows, rows) for rows in (1, 8)] == [4.0, 7.5], "plain rounds, one behind the other"
    assert [told.at(rows, 1) for rows in (4, 8)] == [8.0, 10.0], "guesses"


def test_between_few_and_many_sessions_times_lie_on_lines_too() -> None:
    assert [TOLD.at(64, sessions) for sessions in (1, 8, 36, 64)] == [6.0, 6.0, 7.0, 8.0]
    assert TOLD.at(128, 128) == pytest.approx(TOLD.at(128) + 4.0)  # beyond what was measured
    assert TOLD.at(64) == 6.0
    assert TOLD.at(1, 1) == 4.0


@given(st.floats(1.0, 1e5))
def test_places_tell_doublings_apart_alike(rows: float) -> None:
    assert place_of(2 * rows) - place_of(rows) == pytest.approx(4.0)


def test_it_begins_with_what_is_told() -> None:
    verify, draft = at(64).times(3)
    assert verify == pytest.approx([TOLD.at(64 * rows, 64) for rows in (1, 2, 3, 4)])
    assert draft == pytest.approx((0.0, 1.0, 2.0, 3.0))
    assert ExpectedCosts(TOLD, None).times(3)[1] == ()


def test_seeing_only_rounds_with_guesses_moves_what_plain_ones_are_believed_to_take() -> None:
    costs = at(64)
    for _ in range(int(PATIENCE) + 30):
        costs.observe_verify(192, 64, 1.3 * TOLD.at(192, 64))
        costs.times(3)
    assert costs.times(3)[0][0] == pytest.approx(1.3 * TOLD.at(64, 64), rel=0.02)
    costs.at_load(16, 1)  # never seen
    assert costs.times(3)[0][0] == pytest.approx(1.3 * TOLD.at(16, 16), rel=0.02)


@pytest.mark.parametrize(("rows", "hoped"), [(192, PLAIN), (64, GUESSES)])
def test_of_what_was_not_seen_the_best_is_hoped_for_a_while(rows: int, hoped: str) -> None:
    costs = at(64)
    assert not costs.hopes
    for _ in range(4):
        costs.observe_verify(rows, 64, TOLD.at(rows, 64))
    assert costs.hopes == hoped
    times, place = costs.times(1)[0], 0 if hoped == PLAIN else 1
    expected = (1.0 - HOPE) * TOLD.at(64 * (1 + place), 64)
    assert times[place] == pytest.approx(max(expected, times[0] if place else 0.0))
    for _ in range(int(PATIENCE) + 1):
        costs.observe_verify(rows, 64, TOLD.at(rows, 64))
    assert not costs.hopes  # others do not go along


def test_what_was_seen_is_not_hoped_for() -> None:
    costs = at(64)
    for _ in range(4):
        costs.observe_verify(192, 64, 12.0)
        costs.observe_verify(64, 64, 9.0)
    assert not costs.hopes


rounds = st.tuples(st.integers(1, 200), st.integers(0, 8), st.floats(0.0, 1e6))


@given(st.lists(rounds, max_size=60), st.floats(1, 200))
def test_times_never_fall_and_are_never_nothing(seen: list[tuple[int, int, float]], sessions: float) -> None:
    costs = at(sessions)
    for count, proposed, milliseconds in seen:
        costs.observe_verify(count * (1 + proposed), count, milliseconds)
        costs.observe_draft(1 + proposed, count, milliseconds)
    verify, draft = costs.times(8)
    assert all(0.0 < before <= after for before, after in pairwise(verify))
    assert all(before <= after for before, after in pairwise(draft))


def test_longer_guesses_take_what_their_further_tokens_do() -> None:
    times = StepTimes((1, 4), (1.0, 2.5))
    assert [times.drafting(tokens, 4) for tokens in (1, 2, 4)] == [2.5, 5.0, 10.0]  # as much as the first
    told = StepTimes((1, 4), (1.0, 2.5), further=StepTimes((4,), (0.5,)))
    assert [told.drafting(tokens, 4) for tokens in (1, 2, 4)] == [2.5, 3.0, 4.0]
    costs = ExpectedCosts(StepTimes((1,), (5.0,)), told)
    costs.at_load(4, 4)
    assert costs.times(3)[1] == pytest.approx((0.0, 2.5, 3.0, 3.5))
    for _ in range(30):
        costs.observe_verify(8, 4, 5.0)
        costs.observe_draft(2, 4, 6.0)
    assert costs.times(3)[1][3] == pytest.approx(6.5, abs=0.1)  # 3 ms more than expected, as with two


def test_beyond_the_last_number_of_rows_times_grow_on_though_the_last_step_is_level() -> None:
    told = StepTimes((1, 256, 257, 512), (4.0, 8.0, 12.0, 12.0))
    assert told.at(512) == 12.0
    assert told.at(1024) == pytest.approx(12.0 + 512 * (12.0 - 8.0) / 256)
    assert StepTimes((3, 4), (4.0, 5.0)).at(6) == pytest.approx(7.0)
