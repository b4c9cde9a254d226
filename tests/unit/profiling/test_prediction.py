"""Predictions against values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.acceptance.choice import PLAIN, Choice, rate
from outrider.acceptance.proposal import Source
from outrider.profiling.advice import advise
from outrider.profiling.prediction import (
    Forecast,
    Pick,
    Placement,
    best_by_concurrency,
    cost_table,
    crossover,
    filled,
    speedup,
)
from outrider.profiling.result import Measured, Profile
from outrider.profiling.rounds import Rounds
from outrider.profiling.steps import Cell, StepTimes


def rounds_of(*parts: tuple[int, int, int, int]) -> Rounds:
    """(depth, nodes, accepted, how many)."""
    found = Rounds()
    for depth, nodes, accepted, count in parts:
        for _ in range(count):
            found.add(depth, nodes, accepted)
    return found


VERIFY = {0: 10.0, 1: 11.0, 2: 12.0, 4: 14.0}
DRAFT = {1: 2.0, 4: 8.0}


def test_gaps_are_filled_with_straight_lines_that_never_fall() -> None:
    assert filled({0: 10.0, 4: 14.0}, 6) == (10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0)
    assert filled({0: 10.0, 1: 14.0, 2: 12.0}, 2) == (10.0, 13.0, 13.0)
    assert filled({2: 5.0}, 3) == (5.0, 5.0, 5.0, 5.0)


def test_costs_hold_one_round_trip_a_call() -> None:
    costs = cost_table(VERIFY, DRAFT, 4, 0.5)
    assert costs.verify_ms == (10.5, 11.5, 12.5, 13.5, 14.5)
    assert costs.draft_ms == (0.0, 2.5, 4.5, 6.5, 8.5)
    assert costs.round_ms(Source.MODEL, 4) == 23.0
    assert cost_table(VERIFY, {}, 4, 0.5).draft_ms == (0.0,) * 5


def test_speedup_in_sequence_by_hand_and_by_the_controller() -> None:
    # 10 rounds of guesses of 4, 25 accepted: 35 tokens in 10 x (14 + 8) ms, plainly in 35 x 10 ms.
    rounds = rounds_of((4, 4, 2, 5), (4, 4, 3, 5))
    costs = cost_table(VERIFY, DRAFT, 4, 0.0)
    found = speedup(rounds, costs, Source.MODEL, Placement.SEQUENCE)
    assert found == pytest.approx(350 / 220)
    assert found == pytest.approx(rate(costs, Choice(Source.MODEL, 4), 2.5) / rate(costs, PLAIN))


def test_a_hidden_draft_costs_what_it_takes_longer_than_the_target() -> None:
    rounds = rounds_of((4, 4, 3, 10))
    assert speedup(rounds, cost_table(VERIFY, DRAFT, 4, 1.0), Source.MODEL, Placement.HIDDEN) == pytest.approx(
        40 * 11 / (10 * 15)
    )
    slow = cost_table(VERIFY, {1: 5.0, 4: 20.0}, 4, 1.0)
    assert speedup(rounds, slow, Source.MODEL, Placement.HIDDEN) == pytest.approx(40 * 11 / (10 * 21))


def test_ngrams_cost_nothing_and_rounds_without_a_match_are_plain() -> None:
    rounds = rounds_of((0, 0, 0, 6), (2, 2, 2, 4))
    for placement in Placement:  # no model: nothing to hide
        found = speedup(rounds, cost_table(VERIFY, {}, 4, 0.0), Source.NGRAM, placement)
        assert found == pytest.approx(18 * 10 / (6 * 10 + 4 * 12))


def test_a_tree_is_drafted_by_depth_and_judged_by_nodes() -> None:
    rounds = rounds_of((1, 2, 1, 10))
    costs = cost_table(VERIFY, DRAFT, 4, 0.0)
    assert speedup(rounds, costs, Source.MODEL, Placement.SEQUENCE) == pytest.approx(20 * 10 / (10 * (12 + 2)))
    assert speedup(rounds, costs, Source.MODEL, Placement.HIDDEN) == pytest.approx(20 * 10 / (10 * 12))


def forecast(sessions: int, length: int, gain: float, temperature: float = 0.0) -> Forecast:
    return Forecast("d", temperature, sessions, length, Placement.SEQUENCE, siblings=0, speedup=gain)


def test_the_best_choice_is_that_over_all_temperatures() -> None:
    found = best_by_concurrency(
        [forecast(1, 2, 1.6), forecast(1, 2, 0.9, 0.7), forecast(1, 1, 1.3), forecast(1, 1, 1.3, 0.7)]
    )
    assert found == [Pick(1, "d", 1, 0, pytest.approx(1.3))]


@pytest.mark.parametrize(
    ("gains", "end"), [([1.5, 1.2, 1.04], 4), ([1.5, 1.04, 1.2], None), ([1.0, 1.04, 0.9], 1), ([1.5, 1.05, 0.9], 4)]
)
def test_the_crossover_is_where_the_coordinator_stops_to_begin(gains: list[float], end: int | None) -> None:
    assert crossover([Pick(1 << n, "d", 1, 0, gain) for n, gain in enumerate(gains)]) == end


def profile(chains: Rounds, *, draft_ms: float, trained: bool = False) -> Profile:
    """One session at 10 ms a token, 32 at 1.5 times that for each guessed token."""
    cells = [Cell(0.0, 1, n, (10.0 + n,)) for n in (0, 4)] + [Cell(0.0, 32, n, (100.0 + 100.0 * n,)) for n in (0, 4)]
    draft = StepTimes("d", 64, tuple(Cell(0.0, s, n, (draft_ms * n,)) for s in (1, 32) for n in (1, 4)), ())
    flags = ("--draft-model", "small model", "--drafter", "auto")
    drafter = Measured("draft", "small", flags, Source.MODEL, {(0.0, "code"): {4: chains}}, {}, {}, {}, draft, trained)
    return Profile("big", StepTimes("target", 64, tuple(cells), ()), (drafter,), (0.0,), (4,), 0.0, 1, 9, ())


def lines(found: Profile) -> str:
    return "\n".join(advise(found, found.forecasts(), ["my prompts.jsonl"]).lines)


def test_advice_for_a_good_draft() -> None:
    # 1 session: 4 tokens a round, 40 / (14 + 4); 32: 400 / (500 + 4).
    found = profile(rounds_of((4, 4, 3, 10)), draft_ms=1.0)
    text = lines(found)
    assert "Use draft, guesses of 4 tokens: 2.22 times" in text
    assert "outrider up --model big --draft-model 'small model' --drafter auto --max-draft-tokens 4" in text
    assert "From 32 sessions at once on nothing pays" in text
    assert "hidden behind the target's, at most: 2.86 times with 1 session" in text
    assert "distill" not in text
    assert advise(found, found.forecasts(), []).crossover[Placement.SEQUENCE] == 32


@pytest.mark.parametrize(
    ("accepted", "words"), [(2, "give 1.88 instead of 1.43 times with 1 session"), (1, "not bring")]
)
def test_advice_about_siblings(accepted: int, words: str) -> None:
    # 1 session: a chain gives 2 tokens for 12 + 2 ms, 20 / 14; siblings (1 + accepted) tokens for 14 + 2 ms.
    found = profile(rounds_of((2, 2, 1, 10)), draft_ms=1.0)
    (drafter,) = found.drafters
    trees = {0.0: {(2, 2): rounds_of((2, 4, accepted, 10))}}
    chains = {(0.0, "code"): {2: rounds_of((2, 2, 1, 10)), 4: rounds_of((4, 4, 1, 10))}}
    tree = replace(drafter, chains=chains, trees=trees, siblings={0.0: {(2, 2): (1, 1)}})
    text = lines(replace(found, drafters=(tree,), lengths=(2, 4)))
    assert words in text
    assert ("beside the first token, the second, ...: 1 1;" in text) == (accepted == 2)


def test_advice_for_a_bad_draft() -> None:
    # 1 session: 1.2 tokens a round, 12 / (14 + 4).
    text = lines(profile(rounds_of((4, 4, 0, 8), (4, 4, 1, 2)), draft_ms=1.0))
    assert "Serve without speculation" in text
    # Hidden, 12 / 14.
    assert "would not pay either: 0.86 times" in text
    assert "0.67 times" in text
    assert "(draft) 5% stand, fewer than half: distill one instead" in text
    assert "outrider distill --target big --prompts 'my prompts.jsonl' --out my-draft" in text


def test_advice_for_a_draft_that_pays_below_the_fallback() -> None:
    # 1 session: 1.7 tokens a round, 17 / (14 + 0.4); of 17 tried tokens 7 stood.
    text = lines(profile(rounds_of((4, 4, 0, 4), (4, 4, 1, 5), (4, 4, 2, 1)), draft_ms=0.1, trained=True))
    assert "Use draft" in text
    assert "41% of those tried stand, below fallback_acceptance (0.5)" in text
    paying = lines(profile(rounds_of((4, 4, 0, 6), (4, 4, 4, 4)), draft_ms=0.1))
    assert "Use draft" in paying
    assert "fallback_acceptance" not in paying, "where few guesses fall, and at once, most of what is tried stands"
    assert "It was distilled already" in text


def test_what_a_draft_was_not_timed_for_is_not_predicted() -> None:
    found = profile(rounds_of((4, 4, 3, 10)), draft_ms=1.0)
    times = found.drafters[0].times
    assert times is not None
    assert {forecast.sessions for forecast in found.forecasts()} == {1, 32}
    assert found.plain_tokens_per_second(0.0) == {1: pytest.approx(100.0), 32: pytest.approx(320.0)}
