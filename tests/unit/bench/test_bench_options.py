"""What a sweep is, what is refused, when requests arrive, which requests there are."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

import pytest

from outrider.bench.arrivals import poisson_arrivals
from outrider.bench.options import (
    BenchOptions,
    Concurrency,
    Limits,
    RequestRate,
    concurrencies,
    drafters,
    request_rates,
)
from outrider.bench.prompts import BUILT_IN, RequestList
from outrider.client import Drafter
from outrider.errors import InvalidArgument
from outrider.prompts import Prompt

ONE = (Concurrency(1),)


def test_points_and_drafters_from_text() -> None:
    assert concurrencies("1, 4,16") == (Concurrency(1), Concurrency(4), Concurrency(16))
    assert request_rates("0.5,2") == (RequestRate(0.5), RequestRate(2.0))
    assert drafters("model,ngram") == (Drafter.MODEL, Drafter.NGRAM)


@pytest.mark.parametrize(
    ("parse", "text", "named"),
    [
        (concurrencies, "1,x", "concurrency is '1,x', but must be whole numbers from 1 to 4096"),
        (concurrencies, "0", "from 1 to 4096"),
        (concurrencies, "", "such as 1,4,16"),
        (concurrencies, "5000", "from 1 to 4096"),
        (request_rates, "0", "request_rate is '0', but must be positive"),
        (request_rates, "inf", "positive"),
        (request_rates, "nan", "positive"),
        (drafters, "auto,oracle", "drafter is 'auto,oracle', but must be one or more of auto, model, ngram"),
    ],
)
def test_bad_text_is_refused_by_name_value_and_limit(parse: Any, text: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        parse(text)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"points": ()}, "points"),
        ({"drafters": (Drafter.NONE,)}, "drafter"),
        ({"drafters": (Drafter.AUTO, Drafter.AUTO)}, "drafter"),
        ({"turns": 3}, "turns is 3, but must be an even number"),
        ({"turns": 0}, "turns is 0"),
        ({"warm_up": -1}, "warm_up"),
        ({"seed": -1}, "seed"),
        ({"gpus": 0}, "gpus"),
        ({"points": (Concurrency(4),), "requests": 7}, "requests is 7, but must be at least 8: 2 turns .* 4 in flight"),
    ],
)
def test_what_cannot_be_measured_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        BenchOptions(**({"points": ONE} | fields))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_limits_are_positive(value: float) -> None:
    with pytest.raises(InvalidArgument, match="slo_tpot_ms"):
        Limits(tpot_ms=value)


def test_requests_of_a_point() -> None:
    options = BenchOptions(points=ONE, turns=4)
    assert [options.requests_at(Concurrency(n)) for n in (1, 2, 16)] == [16, 16, 128]
    assert [options.warm_up_at(Concurrency(16)), options.warm_up_at(RequestRate(2))] == [16, 4]
    assert BenchOptions(points=ONE, requests=7, turns=4).turn_sizes(Concurrency(1)) == (2, 2, 2, 1)


def test_arrivals_are_a_poisson_process_that_a_key_decides() -> None:
    times = poisson_arrivals(20_001, 4.0, "a")
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0.0
    assert min(gaps) > 0
    # Exponential gaps: mean 1/4, the same standard deviation, and a share of exp(-1) longer than the mean (4 sigma).
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.014)
    assert poisson_arrivals(5, 4.0, "a") == times[:5]
    assert poisson_arrivals(5, 8.0, "a") == pytest.approx([time / 2 for time in times[:5]])
    assert poisson_arrivals(5, 4.0, "b") != times[:5]
    assert poisson_arrivals(0, 1.0, "a") == ()


def test_requests_take_prompts_in_turns_and_seeds_count_up() -> None:
    requests = RequestList(BUILT_IN, 2**64 - 1)
    span = requests.span(0, 2 * len(BUILT_IN))
    places = [request.place for request in span]
    assert sorted(places[: len(BUILT_IN)]) == list(range(len(BUILT_IN)))
    assert places[: len(BUILT_IN)] == places[len(BUILT_IN) :] != sorted(places[: len(BUILT_IN)])
    assert all(request.prompt is BUILT_IN[request.place] for request in span)
    assert [request.seed for request in span[:3]] == [2**64 - 1, 0, 1]
    assert [request.number for request in requests.span(-2, 2)] == [-2, -1]


def test_raw_text_and_messages_are_sent_as_such() -> None:
    raw, chat = Prompt((), "Once", ""), BUILT_IN[0]
    text, options = RequestList([raw], 3)[0].options({"max_tokens": 4})
    assert (text, options) == ("Once", {"max_tokens": 4, "seed": 3})
    text, options = RequestList([chat], 3)[1].options({})
    assert (text, options) == (None, {"seed": 4, "messages": [dict(chat.messages[0])]})
