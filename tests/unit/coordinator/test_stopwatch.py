"""How long the parts of a round took, by a clock that is told."""

from __future__ import annotations

import pytest

from outrider.acceptance.proposal import NO_PROPOSAL, Verdict
from outrider.protocol.items import Step
from outrider_coordinator.judged import Judged
from outrider_coordinator.stopwatch import SHORTEST_MS, RoundClock


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("time.perf_counter", time)
    return time


def round_of(
    clock: RoundClock, time: Time, *, propose: float, verify: float, own: float, step: int = 0, **told: bool
) -> tuple[float, float]:
    """Milliseconds; then one passes until the client has the delta."""
    time.now += propose / 1e3
    clock.proposed()
    time.now += verify / 1e3
    clock.verified(
        Judged(NO_PROPOSAL, Verdict((1,), step_microseconds=step), Step(draft_microseconds=round(own * 1e3))), **told
    )
    time.now += 1e-3
    clock.emitted()
    return pytest.approx(clock.propose_ms), pytest.approx(clock.verify_ms)  # type: ignore[return-value]


def test_a_round_that_was_told_is_timed_by_its_parts(time: Time) -> None:
    clock = RoundClock()
    assert round_of(clock, time, propose=3, verify=7, own=0.0, began_by_itself=False) == (3, 7)
    assert round_of(clock, time, propose=2, verify=9, own=0.0, began_by_itself=False) == (2, 9)


def test_one_that_began_by_itself_runs_since_the_verdict_before(time: Time) -> None:
    clock = RoundClock()
    round_of(clock, time, propose=3, verify=7, own=0.0, began_by_itself=False)
    assert round_of(clock, time, propose=2, verify=9, own=0.0, began_by_itself=True) == (2, 1 + 2 + 9)
    assert clock.period_ms == pytest.approx(1 + 2 + 9)
    round_of(clock, time, propose=3, verify=7, own=0.0, began_by_itself=False)
    assert clock.period_ms == pytest.approx(1 + 3 + 7)


def test_what_the_verifier_drafted_by_itself_is_no_verification(time: Time) -> None:
    clock = RoundClock()
    assert round_of(clock, time, propose=0, verify=10, own=4.0, began_by_itself=False) == (4, 6)
    assert round_of(clock, time, propose=1, verify=10, own=5.0, began_by_itself=True) == (5, 7)
    assert round_of(clock, time, propose=1, verify=10, own=0.0, began_by_itself=True) == (1, 12)


def test_after_a_verdict_that_came_late_the_step_is_what_is_left(time: Time) -> None:
    clock = RoundClock()
    assert round_of(clock, time, propose=0, verify=2, own=4.0, step=3000, began_by_itself=True) == (4, 3)
    assert round_of(clock, time, propose=0, verify=2, own=4.0, began_by_itself=True) == (4, SHORTEST_MS)
    assert round_of(clock, time, propose=0, verify=2, own=0.0, step=5000, began_by_itself=True) == (0, 5)


def test_in_a_step_that_several_share_its_own_time_counts_alone(time: Time) -> None:
    """However long the round waited for the step before."""
    for began_by_itself in (False, True):
        clock = RoundClock()
        time.now += 0.020
        step = Step(rows=5, sessions=2, draft_microseconds=4000)
        clock.proposed()
        time.now += 0.050
        judged = Judged(NO_PROPOSAL, Verdict((1,), step_microseconds=9000), step)
        clock.verified(judged, began_by_itself=began_by_itself, in_step=True)
        assert (clock.propose_ms, clock.verify_ms) == (4.0, 9.0)
        clock.verified(judged._replace(step=step._replace(sessions=1)), began_by_itself=True, in_step=True)
        assert clock.verify_ms == 9.0  # no less than it says
