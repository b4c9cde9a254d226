"""How long rounds are taken to be that were drafted ahead for."""

from __future__ import annotations

import pytest

from outrider.acceptance.ahead_times import REMEMBERED, AheadTimes

DRAFT_MS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


def seen(*rounds: tuple[int, float]) -> AheadTimes:
    times = AheadTimes()
    for drafted, milliseconds in rounds:
        times.observe(drafted, milliseconds)
    return times


def test_before_anything_was_seen_it_is_nothing() -> None:
    assert seen().times(2, DRAFT_MS) == (0.0, 0.0, 0.0)


def test_other_lengths_take_more_or_less_by_what_drafting_does() -> None:
    times = seen(*[(3, 9.0)] * 3).times(5, DRAFT_MS)
    assert times == pytest.approx((6.0, 7.0, 8.0, 9.0, 10.0, 11.0))
    assert seen((6, 9.0)).times(2, DRAFT_MS)[2] == pytest.approx(9.0 - (6.0 - 2.0))


def test_a_hidden_length_says_nothing_against_longer_ones() -> None:
    """A round is no shorter for one token than for two as long as both are hidden."""
    times = seen(*[(2, 5.0)] * 7, *[(1, 5.0)] * 7).times(4, DRAFT_MS)
    assert times[1:] == pytest.approx((5.0, 5.0, 6.0, 7.0))


def test_what_was_seen_counts_and_one_odd_round_does_not() -> None:
    times = seen(*[(2, 5.0), (4, 12.0)] * 4, (2, 90.0), (4, 90.0), (3, 80.0), (3, 8.0)).times(4, DRAFT_MS)
    assert times[2:] == pytest.approx((5.0, 8.0, 12.0))


def test_rounds_that_take_one_pass_or_two_take_what_they_do_on_average() -> None:
    """Their median would be that of the more frequent ones: 8 ms, as of guesses that always need two."""
    times = seen(*[(2, 8.0), (2, 4.0), (2, 8.0), (2, 4.0), (2, 8.0)] * 4, *[(4, 8.0)] * 20).times(4, DRAFT_MS)
    assert times[2] == pytest.approx(6.4, abs=0.2)
    assert times[4] == pytest.approx(8.0)


def test_rounds_that_met_prompts_say_little_even_if_they_were_many() -> None:
    """As seen where four sessions began: they made the length look too slow ever to be tried again."""
    times = seen(*[(2, each) for each in (16.0, 17.0, 16.0, 187.0, 16.0, 90.0, 90.0, 91.0, 16.0)])
    assert 16.0 < times.times(2, DRAFT_MS)[2] < 25.0


def test_what_was_not_foreseen_takes_longer_by_what_it_did() -> None:
    times = seen(*[(2, 5.0)] * 5)
    assert times.miss_ms is None
    for milliseconds in (9.0, 11.0, 80.0, 4.0, 9.0):
        times.observe_miss(2, milliseconds)
    times.observe_miss(3, 70.0)  # of that length nobody knows what the others take
    assert times.miss_ms == pytest.approx((4.0 + 6.0 + 6.0 + 0.0 + 4.0) / 5)


def test_times_never_fall() -> None:
    times = seen(*[(1, 9.0)] * 5, *[(3, 6.0)] * 5).times(4, DRAFT_MS)
    assert list(times) == sorted(times)
    assert times[1] < 9.0


def test_a_length_that_is_not_drafted_any_more_is_forgotten() -> None:
    times = seen(*[(4, 90.0)] * 7, *[(2, 5.0)] * (REMEMBERED + 1))
    assert times.times(4, DRAFT_MS)[4] == pytest.approx(7.0)
    times.restart()
    assert times.times(1, DRAFT_MS) == (0.0, 0.0)
