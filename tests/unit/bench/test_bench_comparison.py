"""Speculation over plain decoding, and whether both said the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.acceptance.params import Rule
from outrider.bench.comparison import Identity, Ratio, compare
from outrider.bench.notes import notes
from outrider.bench.options import BenchOptions, Concurrency, RequestRate
from outrider.bench.report import Report, report_point
from outrider.bench.sample import Outcome
from outrider.bench.sweep import PointResult
from outrider.client import Drafter
from tests.unit.bench.samples import answer, lost, sample, turn

SLOW = [turn(sample(0, (1.0, 1), (3.0, 2))), turn(sample(1, (1.0, 1), (3.0, 2)), seconds=2.0)]
FAST = [
    replace(turn(sample(0, (1.0, 1), (2.0, 2))), seconds=0.5, mode=Drafter.AUTO),
    replace(turn(sample(1, (1.0, 1), (3.0, 2))), seconds=4.0, mode=Drafter.AUTO),
]


def test_ratios_overall_and_turn_by_turn() -> None:
    found = compare(SLOW, FAST, promised=True)
    assert found.output_tokens_per_s == Ratio(pytest.approx(3.0 / 4.5), (2.0, 0.5))
    assert found.session_tokens_per_s == Ratio(pytest.approx(4 / 3), (2.0, 1.0))
    assert found.latency_mean.overall == pytest.approx(2.5 / 3.0)
    assert found.identity == Identity(2, ())


def test_no_ratio_where_one_side_completed_nothing() -> None:
    gone = [turn(lost(n, Outcome.FAILED, "gone")) for n in range(2)]
    for pair in ((SLOW, gone), (gone, FAST)):
        found = compare(*pair, promised=True)
        assert found.output_tokens_per_s == found.session_tokens_per_s == Ratio(None, (None, None))
        assert found.identity == Identity(0, ())


def test_answers_are_compared_by_request_and_only_where_both_answered() -> None:
    plain = [turn(*(sample(n, (1.0, 1), answer=answer(1, digest=f"d{n}")) for n in range(4)))]
    mode = [
        turn(
            sample(3, (1.0, 1), answer=answer(1, digest="other")),
            sample(0, (1.0, 1), answer=answer(1, digest="d0")),
            sample(1, (1.0, 1), answer=answer(1, digest="d1")),
            lost(2, Outcome.REFUSED, "full"),
        )
    ]
    assert compare(plain, mode, promised=True).identity == Identity(3, (3,))
    assert compare(plain, mode, promised=False).identity is None


@pytest.mark.parametrize(("rule", "promised"), [(Rule.MATCH, True), (Rule.REJECTION, False), (Rule.BLOCK, False)])
def test_only_match_promises_the_same_answers(rule: Rule, promised: bool) -> None:
    options = BenchOptions((Concurrency(1),), requests=2)
    report = report_point(PointResult(Concurrency(1), (*SLOW, *FAST)), options, rule)
    assert (report.comparisons[Drafter.AUTO].identity is not None) is promised


def test_the_speed_up_is_that_of_all_sessions_or_of_each_where_arrivals_set_the_load() -> None:
    options = BenchOptions((Concurrency(1),), requests=2)
    for point, expected in ((Concurrency(1), (2.0, 0.5)), (RequestRate(1.0), (2.0, 1.0))):
        report = report_point(PointResult(point, (*SLOW, *FAST)), options, Rule.MATCH)
        assert report.speedup(Drafter.AUTO).turns == expected


def test_what_went_wrong_is_counted_and_said() -> None:
    plain = [turn(sample(0, (1.0, 1)), lost(1, Outcome.REFUSED, "full")), turn(sample(2, (1.0, 1), sent=0.2))]
    mode = [
        turn(sample(0, (1.0, 1), answer=answer(1, digest="other")), lost(1, Outcome.FAILED, "gone"), mode=Drafter.AUTO),
        turn(sample(2, (1.0, 1), answer=answer(1, fallback_reason="bad guesses")), mode=Drafter.AUTO),
    ]
    options = BenchOptions((Concurrency(1),), requests=3)
    point = report_point(PointResult(Concurrency(1), (*plain, *mode)), options, Rule.MATCH)
    report = Report({}, options, (point,))
    assert (report.failed, report.differing) == (1, 1)
    said = "\n".join(notes(report.points))
    for text in (
        "1 at once, plain: 1 of 3 requests were refused", "plain: 1 x full", "auto: 1 of 3 requests failed",
        "auto: 1 x gone", "auto: speculation stopped in 1 answers: bad guesses", "auto: 1 of 2 answers are not those",
        "(requests 0)", "too busy to make that load",
    ):  # fmt: skip
        assert text in said


def test_turns_that_disagree_are_said_and_a_clean_run_says_nothing() -> None:
    options = BenchOptions((Concurrency(1),), requests=2)
    mixed = report_point(PointResult(Concurrency(1), (*SLOW, *FAST)), options, Rule.MATCH)
    assert notes((mixed,)) == [
        "1 at once, auto: the turns disagree about the speed-up (2.00x, 0.50x); more --requests would tell"
    ]
    both = [replace(each, mode=Drafter.AUTO, seconds=0.25) for each in SLOW]
    assert notes((report_point(PointResult(Concurrency(1), (*SLOW, *both)), options, Rule.MATCH),)) == []
