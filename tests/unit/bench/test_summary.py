"""Percentiles, rates and goodput, to the digit."""

from __future__ import annotations

import pytest

from outrider.bench.options import Limits
from outrider.bench.sample import Outcome
from outrider.bench.summary import Distribution, distribution, summarize, within
from tests.unit.bench.samples import answer, lost, sample, turn


def test_percentiles_interpolate_between_the_nearest_samples() -> None:
    found = distribution([5.0, 1.0, 2.0, None, 4.0, 3.0])
    assert found is not None
    assert (found.count, found.mean, found.p50) == (5, 3.0, 3.0)
    assert (found.p90, found.p99) == (pytest.approx(4.6), pytest.approx(4.96))


def test_one_value_is_all_of_its_percentiles_and_none_has_no_distribution() -> None:
    assert distribution([2.5]) == Distribution(1, 2.5, 2.5, 2.5, 2.5)
    assert distribution([None]) is None


def test_latencies_count_from_the_scheduled_arrival_not_from_the_sending() -> None:
    one = sample(0, (3.0, 2), (4.0, 1), (6.0, 3), scheduled=1.0, sent=2.5, end_s=6.5)
    assert (one.ttft_s, one.latency_s, one.gaps_s) == (2.0, 5.5, [1.0, 2.0])
    assert one.tpot_s == 0.75, "four tokens after the first chunk, in three seconds"
    summary = summarize([turn(one)], Limits(), None)
    assert summary.send_delay is not None
    assert summary.send_delay.mean == 1.5


def test_an_answer_of_one_chunk_or_of_no_token_has_no_time_per_token() -> None:
    assert sample(0, (1.0, 4)).tpot_s is None
    assert (sample(0).ttft_s, sample(0).tpot_s, sample(0).gaps_s) == (None, None, [])


def test_rates_are_over_the_time_of_all_turns_and_only_completed_requests_count() -> None:
    first = turn(
        sample(0, (1.0, 1), (3.0, 4), answer=answer(5, rounds=2, proposed_tokens=8, accepted_tokens=3)),
        lost(1, Outcome.REFUSED, "full"),
        seconds=3.0,
    )
    second = turn(
        sample(2, (0.5, 1), (2.5, 6), answer=answer(7, rounds=4, proposed_tokens=4, accepted_tokens=3)),
        lost(3, Outcome.FAILED, "gone"),
        lost(4, Outcome.REFUSED, "full"),
        seconds=5.0,
    )
    found = summarize([first, second], Limits(), 2)
    assert (found.requests, found.completed, found.refused, found.failed) == (5, 2, 2, 1)
    assert found.errors == {"full": 2, "gone": 1}
    assert (found.seconds, found.output_tokens) == (8.0, 12)
    assert (found.output_tokens_per_s, found.gpu_tokens_per_s, found.requests_per_s) == (1.5, 0.75, 0.25)
    assert found.session_tokens_per_s == 2.5, "ten tokens after first chunks, in two seconds twice"
    assert found.goodput_per_s is None
    assert (found.acceptance_rate, found.accepted_length, found.wire_bytes_per_token) == (0.5, 2.0, 40.0)


def test_where_nothing_completed_there_are_no_latencies_and_no_rates() -> None:
    found = summarize([turn(lost(0, Outcome.FAILED, "gone"), seconds=0.0)], Limits(ttft_ms=1), 1)
    assert (found.output_tokens_per_s, found.requests_per_s, found.goodput_per_s, found.gpu_tokens_per_s) == (0,) * 4
    assert (found.ttft, found.tpot, found.latency, found.chunk_gap) == (None,) * 4
    assert (found.session_tokens_per_s, found.acceptance_rate, found.accepted_length) == (None,) * 3


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (Limits(), True),
        (Limits(ttft_ms=500), True),
        (Limits(ttft_ms=499.9), False),
        (Limits(tpot_ms=250), True),
        (Limits(tpot_ms=249.9), False),
        (Limits(ttft_ms=500, tpot_ms=249.9), False),
    ],
)
def test_an_answer_is_good_within_every_limit(limits: Limits, good: bool) -> None:
    assert within(sample(0, (0.5, 1), (1.5, 4)), limits) is good


def test_goodput_counts_good_answers_a_second_and_never_lost_ones() -> None:
    slow, fast, short = sample(0, (0.9, 1), (1.0, 1)), sample(1, (0.1, 1), (0.2, 1)), sample(2, (0.1, 1))
    found = summarize([turn(slow, fast, short, lost(3, Outcome.REFUSED, "full"), seconds=4.0)], Limits(500, 150), None)
    assert found.goodput_per_s == 0.5
    assert found.requests_per_s == 0.75


def test_reasons_to_stop_speculating_are_counted() -> None:
    samples = [sample(n, (1.0, 1), answer=answer(1, fallback_reason="bad" if n else "")) for n in range(3)]
    assert summarize([turn(*samples)], Limits(), None).fallbacks == {"bad": 2}
