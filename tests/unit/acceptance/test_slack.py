"""Siblings are drafted ahead only while rounds do not wait for the draft."""

from __future__ import annotations

from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import RoundCosts
from outrider.acceptance.policy import Policy
from outrider.acceptance.proposal import Source
from outrider.acceptance.round import Round
from outrider.acceptance.slack import AWAY, Slack


def told(slack: Slack, *periods: float) -> bool:
    for period in periods:
        slack.observe(period, 10.0)
    return slack.is_there


def test_there_is_time_until_rounds_wait_and_again_after_a_while() -> None:
    slack = Slack()
    assert told(slack, 10.0, 10.4, 9.0)
    assert not told(slack, *[14.0] * 8)
    assert not told(slack, *[10.0] * (AWAY - 1))
    assert told(slack, *[10.0] * AWAY)


def test_one_late_round_says_little() -> None:
    assert told(Slack(), *[10.0] * 20, 16.0, *[10.0] * 20)


def test_a_verifier_that_does_not_say_what_its_step_took_tells_nothing() -> None:
    slack = Slack()
    for _ in range(50):
        slack.observe(100.0, 0.0)
    assert slack.is_there


def test_siblings_are_drafted_ahead_while_there_is_time() -> None:
    def siblings(period_ms: float) -> tuple[int, ...]:
        one = DraftControl(RoundCosts(), Policy(max_siblings=8, fallback_acceptance=0.0))
        for turn in range(120):
            length = one.decide({Source.MODEL: 1}, 4).length
            accepted = length * (turn % 2)
            one.record(
                Round(length, accepted, accepted + 1, 1.0, 10.0, True, ahead=4, period_ms=period_ms, step_ms=10.0)
            )
        one.decide({Source.MODEL: 1}, 4)
        assert one.look_ahead(4) > 0
        return one.siblings_ahead(3)

    assert siblings(10.0)
    assert not siblings(13.0)
