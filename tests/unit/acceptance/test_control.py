"""A session's choices on simulated machines: near the best that a fixed length could do, never much below plain."""

from __future__ import annotations

import pytest

from outrider.acceptance.choice import PLAIN, Choice
from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import RoundCosts
from outrider.acceptance.policy import Policy
from outrider.acceptance.proposal import Source
from outrider.acceptance.round import Round
from outrider.acceptance.window import AcceptanceWindow
from tests.unit.acceptance.simulated_decoding import Machine, SimulatedSession, warmed

CPU = Machine(plain_ms=60, verify=0.04, draft=0.3)
SMALL_CPU = Machine(plain_ms=60, verify=0.2, draft=0.25)
GPU = Machine(plain_ms=10, verify=0.0, draft=0.05)
DEAR = Machine(plain_ms=60, verify=0.04, draft=0.5)
MACHINES = [CPU, SMALL_CPU, GPU, DEAR]
NO_FALLBACK = Policy(fallback_acceptance=0.0)


def label(machine: Machine) -> str:
    return f"verify {machine.verify} draft {machine.draft}"


@pytest.mark.parametrize("by_itself", [False, True])
@pytest.mark.parametrize("longest", [4, 8])
@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("machine", MACHINES, ids=label)
def test_in_the_long_run_it_is_near_the_best_length(
    machine: Machine, chance: float, longest: int, by_itself: bool
) -> None:
    speeds = []
    for seed in range(3):
        costs = warmed(machine, longest=longest, seed=90 + seed)
        session = SimulatedSession(machine, costs, longest=longest, policy=NO_FALLBACK, seed=seed, by_itself=by_itself)
        speeds.append(session.speed(session.run(2500, lambda source, place: chance)))
    assert sum(speeds) / 3 > 0.93 * machine.best_speed(chance, longest)


@pytest.mark.parametrize("sources", ["model", "ngram", "both"])
@pytest.mark.parametrize("longest", [4, 8])
@pytest.mark.parametrize("machine", MACHINES, ids=label)
def test_guesses_that_never_stand_cost_a_short_answer_little(machine: Machine, longest: int, sources: str) -> None:
    """128 tokens, every n-gram match wrong and every guess of the model."""
    for seed in range(4):
        costs = warmed(machine, longest=longest, seed=90 + seed)
        session = SimulatedSession(machine, costs, longest=longest, seed=seed)
        ngram = 0.0 if sources == "model" else 0.6
        run = session.run(128, lambda source, place: 0.0, ngram=ngram, model=sources != "ngram")
        assert session.speed(run) > 0.97


@pytest.mark.parametrize("chance", [0.8, 0.7])
def test_what_is_decided_for_long_keeps_a_request_from_falling_back(chance: float) -> None:
    machine = Machine(plain_ms=4.4, verify=0.02, draft=0.16, round_trip_ms=0.3)
    sessions = [
        SimulatedSession(machine, warmed(machine, longest=8), longest=8, seed=seed, by_itself=True) for seed in range(6)
    ]
    runs = [session.run(1500, lambda source, place: chance) for session in sessions]
    assert sum(run.falls for run in runs) == 0
    assert all(session.speed(run) > 1.3 for session, run in zip(sessions, runs, strict=True))


@pytest.mark.parametrize("by_itself", [False, True])
@pytest.mark.parametrize("machine", MACHINES, ids=label)
def test_guesses_that_never_stand_cost_a_long_answer_less(machine: Machine, by_itself: bool) -> None:
    session = SimulatedSession(machine, warmed(machine), seed=1, by_itself=by_itself)
    assert session.speed(session.run(4000, lambda source, place: 0.0, ngram=0.5)) > 0.985


@pytest.mark.parametrize("by_itself", [False, True])
@pytest.mark.parametrize("machine", [CPU, GPU], ids=label)
def test_speculation_returns_when_it_pays_again(machine: Machine, by_itself: bool) -> None:
    session = SimulatedSession(machine, warmed(machine), seed=2, by_itself=by_itself)
    assert session.speed(session.run(300, lambda source, place: 0.0)) > 0.97
    session.run(300, lambda source, place: 0.9)
    after = session.speed(session.run(600, lambda source, place: 0.9))
    assert after > 0.9 * machine.best_speed(0.9, 4)


def test_it_stops_within_a_few_rounds_when_it_no_longer_pays() -> None:
    speeds = []
    for seed in range(4):
        session = SimulatedSession(CPU, warmed(CPU), seed=seed)
        session.run(300, lambda source, place: 0.95)
        speeds.append(session.speed(session.run(300, lambda source, place: 0.0)))
    assert sum(speeds) / len(speeds) > 0.97


@pytest.mark.parametrize(("better", "worse"), [(Source.NGRAM, Source.MODEL), (Source.MODEL, Source.NGRAM)])
def test_the_better_source_is_taken(better: Source, worse: Source) -> None:
    session = SimulatedSession(CPU, warmed(CPU), seed=4, policy=NO_FALLBACK)
    run = session.run(1500, lambda source, place: 0.9 if source is better else 0.05, ngram=1.0)
    assert run.proposed_by(better) > 15 * run.proposed_by(worse)


def test_both_sources_are_taken_where_each_is_better() -> None:
    """N-grams cost nothing: where there is a match that stands as often, it beats the model."""
    session = SimulatedSession(CPU, warmed(CPU), seed=4)
    run = session.run(1500, lambda source, place: 0.85, ngram=0.5)
    assert run.proposed_by(Source.NGRAM) > 0.35 * run.choices.total()
    assert run.proposed_by(Source.MODEL) > 0.35 * run.choices.total()


def test_a_draft_as_slow_as_the_target_is_only_measured() -> None:
    machine = Machine(draft=1.1)
    session = SimulatedSession(machine, warmed(machine), seed=4)
    run = session.run(3000, lambda source, place: 0.98)
    assert session.speed(run) > 0.985
    assert 0 < run.proposed_by(Source.MODEL) < 0.04 * run.choices.total()


def test_costs_that_were_wrong_are_measured_again() -> None:
    """Learned beside a neighbour that made drafting ten times as slow; the neighbour goes."""
    costs = warmed(Machine(plain_ms=60, draft=3.0))
    session = SimulatedSession(CPU, costs, seed=4)
    session.run(6000, lambda source, place: 0.9)
    assert session.speed(session.run(1000, lambda source, place: 0.9)) > 0.9 * CPU.best_speed(0.9, 4)


def test_load_that_comes_and_goes_does_not_mislead() -> None:
    busy = Machine(plain_ms=240, verify=CPU.verify, draft=CPU.draft)
    session = SimulatedSession(CPU, warmed(CPU), seed=6)
    for machine in (busy, CPU, busy, CPU):
        session.machine = machine
        # While nothing is drafted, the times of drafts are measured seldom.
        session.run(1000, lambda source, place: 0.9)
        assert session.speed(session.run(500, lambda source, place: 0.9)) > 0.9 * machine.best_speed(0.9, 4)
        assert session.speed(session.run(500, lambda source, place: 0.0)) > 0.97


# Before the costs are known


def test_the_first_rounds_guess_as_much_as_is_asked_for_and_then_measure_plain_decoding() -> None:
    session = SimulatedSession(CPU, RoundCosts(), longest=4)
    control = session.control
    choices = []
    for number in range(7):
        choices.append(control.decide({Source.MODEL: 1}, 4))
        length = choices[-1].length
        control.record(Round(length, 0, 1, None if number == 0 else 18.0 * length, None if number == 0 else 60.0))
    assert choices == [Choice(Source.MODEL, 4)] * 4 + [PLAIN] * 3


def test_a_prefill_teaches_nothing_of_costs() -> None:
    costs = warmed(CPU)
    before = costs.table(4)
    control = DraftControl(costs, Policy())
    control.record(Round(control.decide({Source.MODEL: 1}, 4).length, 0, 1, None, None))
    assert costs.table(4) == before


def test_a_source_that_had_nothing_after_all_is_a_plain_round() -> None:
    costs = warmed(CPU)
    control = DraftControl(costs, Policy())
    assert control.decide({Source.MODEL: 1}, 4).length > 0
    draft_ms = costs.table(4).draft_ms
    assert not control.record(Round(0, 0, 1, 2000.0, 60.0))
    assert costs.table(4).draft_ms == draft_ms


# Limits


@pytest.mark.parametrize("longest", [0, 1, 3])
def test_it_never_proposes_more_than_it_may(longest: int) -> None:
    session = SimulatedSession(GPU, warmed(GPU, longest=8), longest=longest)
    run = session.run(400, lambda source, place: 0.95, ngram=0.5)
    assert max(choice.length for choice in run.choices) == longest


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_it_never_proposes_more_nodes_than_there_is_room_for(nodes: int) -> None:
    """Also where it tries another length than the one that it chose; found by fuzzing near the end of an answer."""
    control = DraftControl(warmed(GPU, longest=8), Policy(fallback_acceptance=0.0, max_siblings=8))
    choices = []
    for number in range(200):
        choice = control.decide({Source.MODEL: 1}, nodes - 1, nodes=nodes)
        beside, stood = sum(choice.siblings), number % 3  # now the first choice, now the second, now none
        control.record(
            Round(
                choice.length,
                accepted=min(stood, choice.length),
                committed=min(stood, choice.length) + 1,
                propose_ms=0.5,
                verify_ms=10.0,
                beside=beside,
                tried=choice.siblings[0] if choice.siblings else 0,
                stood=0 if beside and stood == 1 else None,
            )
        )
        choices.append(choice)
    assert max(choice.length + sum(choice.siblings) for choice in choices) == nodes
    assert len({choice.length for choice in choices}) > 1 or nodes == 2


def test_without_a_source_it_decodes_plainly() -> None:
    assert DraftControl(warmed(GPU), Policy()).decide({}, 4) == PLAIN


def test_a_fixed_length_is_kept_whatever_comes_of_it() -> None:
    session = SimulatedSession(CPU, warmed(CPU), policy=Policy(fixed_length=True))
    run = session.run(400, lambda source, place: 0.0)
    assert run.falls == 0
    assert {choice for choice in run.choices if choice.length == 4} == {Choice(Source.MODEL, 4)}
    assert sum(count for choice, count in run.choices.items() if choice.length != 4) <= 4  # the end of the answer


# Fallback


def test_a_request_whose_guesses_fall_falls_back_and_says_so() -> None:
    """On a machine where even rare hits pay, so that the costs alone would go on."""
    session = SimulatedSession(GPU, warmed(GPU), seed=1)
    assert SimulatedSession(GPU, warmed(GPU), seed=1, policy=NO_FALLBACK).run(900, _third).falls == 0
    run = session.run(900, _third)
    assert run.falls == 1
    assert "of the last 200 guessed tokens stood, of those that were tried" in session.control.fallback_reason
    after = session.run(300, _third)
    assert after.choices[PLAIN] > 0.9 * after.choices.total()


@pytest.mark.parametrize("by_itself", [False, True])
def test_it_comes_back_after_a_fallback_when_guesses_stand_again(by_itself: bool) -> None:
    session = SimulatedSession(GPU, warmed(GPU), seed=1, by_itself=by_itself)
    assert session.run(1300, _third).falls == 1
    session.run(300, lambda source, place: 0.95)
    assert session.speed(session.run(600, lambda source, place: 0.95)) > 0.9 * GPU.best_speed(0.95, 4)


@pytest.mark.parametrize("by_itself", [False, True])
def test_one_lucky_probe_does_not_bring_it_back(by_itself: bool) -> None:
    """A little below the limit a request must not fall back, return and fall back again all the time."""
    sessions = [SimulatedSession(GPU, warmed(GPU), seed=seed, by_itself=by_itself) for seed in range(3)]
    runs = [session.run(4000, lambda source, place: 0.45) for session in sessions]
    assert 3 <= sum(run.falls for run in runs) < 17
    assert all(run.choices[PLAIN] > 0.7 * run.choices.total() for run in runs)


def test_the_window_judges_only_once_it_is_full() -> None:
    session = SimulatedSession(GPU, warmed(GPU), seed=1, policy=Policy(fallback_window=500))
    assert session.run(300, _third).falls == 0


@pytest.mark.parametrize("chance", [0.65, 0.7, 0.8])
def test_long_guesses_bring_no_request_to_its_limit(chance: float) -> None:
    """Where 7 of 10 tokens stand, of a guess of 5 only 1.9 do: what comes after one that falls is not tried."""
    machine = Machine(plain_ms=10, verify=0.01, draft=0.05)
    costs = [warmed(machine, longest=8, seed=seed) for seed in range(6)]
    sessions = [SimulatedSession(machine, each, longest=8, seed=seed) for seed, each in enumerate(costs)]
    runs = [session.run(1500, lambda source, place: chance) for session in sessions]
    assert sum(run.falls for run in runs) == 0
    speeds = [session.speed(run) for session, run in zip(sessions, runs, strict=True)]
    assert sum(speeds) / len(speeds) > 0.95 * machine.best_speed(chance, 8)


def test_guesses_get_shorter_before_a_request_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 of 10 first tokens stand, but few after them: of the tried ones of a guess of 4 less than half."""
    machine = Machine(plain_ms=10, verify=0.0, draft=0.01)

    def falls() -> int:
        sessions = [SimulatedSession(machine, warmed(machine), seed=seed) for seed in range(6)]
        return sum(session.run(900, lambda source, place: 0.7, deeper=0.4).falls for session in sessions)

    shortened = falls()
    monkeypatch.setattr(AcceptanceWindow, "bears", lambda *_, **__: True)
    assert falls() >= 6
    assert shortened <= 2


def _third(source: Source, place: int) -> float:
    return 0.3
