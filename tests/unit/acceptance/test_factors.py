"""Times that are known beforehand, about: observations correct them where they were made, and elsewhere until seen."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.acceptance.factors import REMEMBERED, Factors, cell_of

HERE = cell_of(16, 3)


def seen(cell: tuple[int, int], factor: float, count: int = 30, *, began: float = 0.0) -> Factors:
    factors = Factors()
    for place in range(count):
        factors.observe(began + place, cell, 10.0 * factor, 10.0)
    return factors


def test_it_begins_with_what_is_expected() -> None:
    assert Factors().at(0, HERE, 10.0) == 1.0


def test_what_is_seen_counts_where_it_was_seen_and_moves_all_the_rest() -> None:
    factors = seen(HERE, 1.4)
    assert factors.at(30, HERE, 10.0) == pytest.approx(1.4)
    assert factors.at(30, cell_of(16, 1), 10.0) == pytest.approx(1.4)
    assert factors.at(30, cell_of(128, 1), 10.0) == pytest.approx(1.4)
    for place in range(30):
        factors.observe(30 + place, cell_of(16, 1), 10.0, 10.0)
    assert factors.at(60, cell_of(16, 1), 10.0) == pytest.approx(1.0, abs=0.03)
    assert factors.at(60, HERE, 10.0) == pytest.approx(1.4, abs=0.03)


def test_longer_guesses_are_hoped_to_take_no_more_beside_what_is_expected() -> None:
    factors = seen(HERE, 1.5)  # 5 ms more
    assert 20.0 * factors.at(30, cell_of(16, 6), 20.0) == pytest.approx(25.0)
    assert seen(HERE, 0.5).at(30, cell_of(16, 6), 20.0) == pytest.approx(0.5)


def test_guesses_are_hoped_to_take_as_many_milliseconds_more_as_plain_rounds() -> None:
    """Which wait for their host where longer passes would not; what takes less does so for all."""
    factors = seen(cell_of(16, 1), 1.5)  # 5 ms more
    assert 20.0 * factors.at(30, HERE, 20.0) == pytest.approx(25.0)
    assert seen(cell_of(16, 1), 0.5).at(30, HERE, 20.0) == pytest.approx(0.5)


def test_odd_times_do_no_harm() -> None:
    factors = Factors()
    for place in range(30):
        factors.observe(place, HERE, 150.0 if place % 5 == 0 else 12.0, 10.0)
    assert factors.at(30, HERE, 10.0) == pytest.approx(1.2, abs=0.03)


def test_a_single_pass_tells_nothing() -> None:
    """A kernel may have been compiled in it; and of two the faster one counts."""
    factors = seen(HERE, 80.0, 1)
    assert factors.at(1, HERE, 10.0) == 1.0
    factors.observe(1.5, HERE, 12.0, 10.0)  # a session of the same pass still
    factors.observe(2.0, HERE, 12.0, 10.0)
    assert factors.at(2, HERE, 10.0) == pytest.approx(1.2)


def test_all_sessions_of_a_pass_see_the_same() -> None:
    """Many that share a pass must not make it count for the whole of what is remembered."""
    factors = seen(HERE, 1.0)
    for _ in range(128):
        factors.observe(30.0, HERE, 100.0, 10.0)
    assert factors.at(30, HERE, 10.0) == pytest.approx(1.0)


def test_what_is_old_is_forgotten() -> None:
    factors = seen(HERE, 9.0)
    assert factors.seen(30, HERE)
    other = cell_of(16, 1)
    for place in range(4):
        factors.observe(31 + REMEMBERED + place, other, 11.0, 10.0)
    now = 35 + REMEMBERED
    assert not factors.seen(now, HERE)
    assert factors.at(now, HERE, 10.0) == pytest.approx(1.1)


@given(st.lists(st.tuples(st.floats(1, 512), st.floats(1, 9), st.floats(0, 1e9), st.floats(1e-3, 1e6)), max_size=40))
@example([(1.0, 1.0, 0.0, 1.0), (1.0, 1.5, 63.0, 1.0)])  # what a few have is carried on to what all would have
def test_no_factor_is_nothing_or_endless(rounds: list[tuple[float, float, float, float]]) -> None:
    factors = Factors()
    for place, (sessions, size, milliseconds, expected) in enumerate(rounds):
        factors.observe(place, cell_of(sessions, size), milliseconds, expected)
    assert all(0.0 < factors.at(len(rounds), cell_of(s, z), 1.0) < 101.0 for s in (1, 7, 300) for z in (1, 4))
