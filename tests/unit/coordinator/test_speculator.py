"""What the speculator asks of its drafters, and what it passes on of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outrider.acceptance.choice import PLAIN, Choice
from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import RoundCosts
from outrider.acceptance.policy import Policy
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, Verdict
from outrider.acceptance.round import Round
from outrider.acceptance.tree import TokenTree
from outrider.protocol.items import DraftFirst, Step
from outrider_coordinator.drafters import OwnDrafter
from outrider_coordinator.judged import Judged
from outrider_coordinator.orders import Checked, Order
from outrider_coordinator.session import Session
from outrider_coordinator.speculator import STANDS, Speculator
from tests.unit.coordinator.test_session import session


class ScriptedControl(DraftControl):
    """Chooses what it is told to; remembers what it was asked and told."""

    def __init__(self, *choices: Choice) -> None:
        super().__init__(RoundCosts(), Policy())
        self.choices = list(choices)
        self.asked: list[tuple[dict[Source, int], int]] = []
        self.results: list[Round] = []
        self.next: list[tuple[dict[Source, int], int, int]] = []
        self.went: list[Choice] = []
        self.is_settled, self.falls = True, False

    @property
    def settled(self) -> bool:
        return self.is_settled

    def decide_next(self, levels: Any, longest: int, nodes: int = 63) -> Choice | None:
        self.next.append((dict(levels), longest, nodes))
        return self.choices.pop(0)

    def went_on(self, levels: Any, choice: Choice) -> None:
        self.went.append(choice)

    def rests(self, levels: Any, longest: int) -> bool:
        return True

    def decide(self, levels: Any, longest: int, at_hand: int = 0, nodes: int = 63) -> Choice:
        self.asked.append((dict(levels), longest))
        return self.choices.pop(0) if levels else PLAIN

    def record(self, result: Round) -> bool:
        self.results.append(result)
        return self.falls


class CountingUp:
    """Proposes 0, 1, 2, ..."""

    def __init__(self, source: Source, level: int, up_to_date: bool = True, fallback_reason: str = "") -> None:
        self.fallback_reason = fallback_reason
        self.lengths: list[int] = []
        self.closed = False
        self._source = source
        self._level = level
        self._up_to_date = up_to_date

    def level(self, committed: Sequence[int]) -> int:
        return self._level

    def up_to_date(self, committed: Sequence[int], max_tokens: int) -> bool:
        return self._up_to_date

    async def propose(self, committed: Sequence[int], choice: Choice) -> Checked:
        self.lengths.append(choice.length)
        return Proposal(TokenTree.chain(range(choice.length)), self._source)

    async def close(self) -> None:
        self.closed = True


def play(one: Session, speculator: Speculator, proposal: Checked, *next_tokens: int) -> None:
    assert isinstance(proposal, Proposal)
    delta = one.commit(proposal, Verdict(next_tokens))
    speculator.learn(Judged(proposal, Verdict(next_tokens)), delta, propose_ms=3.0, verify_ms=7.0, period_ms=11.0)


async def test_it_offers_what_can_propose_and_asks_the_chosen_one_for_the_chosen_length() -> None:
    one = session()
    ngram, model = CountingUp(Source.NGRAM, 0), CountingUp(Source.MODEL, 1)
    control = ScriptedControl(Choice(Source.MODEL, 2), PLAIN)
    speculator = Speculator(one, control, {Source.NGRAM: ngram, Source.MODEL: model})
    proposal = await speculator.propose(one.committed, 5)
    assert isinstance(proposal, Proposal)
    assert len(proposal) == 2
    assert await speculator.propose(one.committed, 5) is NO_PROPOSAL
    assert control.asked == [({Source.MODEL: 1}, 5)] * 2
    assert (ngram.lengths, model.lengths) == ([], [2])


async def test_without_room_nobody_is_asked() -> None:
    one, model = session(), CountingUp(Source.MODEL, 1)
    speculator = Speculator(one, ScriptedControl(), {Source.MODEL: model})
    assert await speculator.propose(one.committed, 0) is NO_PROPOSAL
    assert model.lengths == []


async def test_no_guess_is_longer_than_the_replicas_take() -> None:
    one, ngram = session(), CountingUp(Source.NGRAM, 1)
    control = ScriptedControl(Choice(Source.NGRAM, 3))
    speculator = Speculator(one, control, {Source.NGRAM: ngram}, most_nodes=lambda: 3)
    await speculator.propose(one.committed, 5)
    assert control.asked == [({Source.NGRAM: 1}, 3)]


async def test_it_learns_from_rounds_but_not_from_prefills_and_catching_up() -> None:
    one = session()
    for up_to_date in (False, True):
        control = ScriptedControl(Choice(Source.MODEL, 2))
        speculator = Speculator(one, control, {Source.MODEL: CountingUp(Source.MODEL, 1, up_to_date)})
        play(one, speculator, await speculator.propose(one.committed, 5), 0, 9, 9)
        expected = Round(2, 1, 2, 3.0, 7.0, period_ms=11.0) if up_to_date else Round(2, 1, 2, None, None)
        assert control.results == [expected]


async def test_it_does_not_learn_from_the_time_of_a_pass_that_waited() -> None:
    one = session()
    one.counts.rounds = 1
    control = ScriptedControl(*[Choice(Source.MODEL, 2)] * 2)
    speculator = Speculator(one, control, {Source.MODEL: CountingUp(Source.MODEL, 1)})
    for waited in (True, False):
        proposal, verdict = await speculator.propose(one.committed, 5), Verdict((0, 9, 9))
        assert isinstance(proposal, Proposal)
        delta = one.commit(proposal, verdict)
        speculator.learn(
            Judged(proposal, verdict, Step(waited=waited)), delta, propose_ms=3.0, verify_ms=7.0, period_ms=11.0
        )
    assert [result.verify_ms for result in control.results] == [None, 7.0]


async def test_the_round_that_ends_the_answer_judges_nothing() -> None:
    """What stands after the end of the answer was never decided: it must not count as guessed wrong."""
    one = session(eos_token_ids=frozenset({0}))
    control = ScriptedControl(Choice(Source.MODEL, 4))
    speculator = Speculator(one, control, {Source.MODEL: CountingUp(Source.MODEL, 1)})
    play(one, speculator, await speculator.propose(one.committed, 5), 0, 9, 9, 9, 9)
    assert one.finish is not None
    assert control.results == []


async def test_it_says_why_speculation_stopped_and_frees_its_drafters() -> None:
    one, control = session(), ScriptedControl()
    lost = CountingUp(Source.MODEL, 1, fallback_reason="gone")
    speculator = Speculator(one, control, {Source.NGRAM: CountingUp(Source.NGRAM, 0), Source.MODEL: lost})
    assert speculator.fallback_reason == "gone"
    control.fallback_reason = "too few stood"
    assert speculator.fallback_reason == "too few stood"
    assert Speculator(one, ScriptedControl(), {}, reason="no drafts").fallback_reason == "no drafts"
    assert Speculator(one, ScriptedControl(), {}).fallback_reason == ""
    await speculator.close()
    assert lost.closed


class Verifier:
    """What a session's own drafter asks of its place on a verifier."""

    def __init__(self, *, drafts: bool = True) -> None:
        self.drafts = drafts
        self.opening = 1
        self.draft_trouble = ""


def own(one: Session, control: ScriptedControl, verifier: Any, *, ngram: int = 0, nodes: int = 63) -> Speculator:
    drafter = OwnDrafter(verifier)
    drafters = {Source.MODEL: drafter, Source.NGRAM: CountingUp(Source.NGRAM, ngram)}
    return Speculator(one, control, drafters, own_draft=drafter, most_nodes=lambda: nodes)


async def test_the_verifier_is_told_to_draft_what_was_chosen() -> None:
    one, control = session(), ScriptedControl(Choice(Source.MODEL, 3, (2, 1)))
    speculator = own(one, control, Verifier())
    wanted = await speculator.propose(one.committed, 5)
    assert wanted == DraftFirst(3, (2, 1))
    speculator.look_ahead(one.committed, wanted, 5)
    assert control.asked == [({Source.MODEL: 1}, 5)]


async def test_what_follows_is_decided_while_the_round_runs_for_its_longest_outcome() -> None:
    """Of ten tokens one round of 3 leaves 6 at least."""
    one, control = session(budget=9), ScriptedControl(Choice(Source.MODEL, 3), Choice(Source.MODEL, 4, (1,)))
    speculator = own(one, control, Verifier(), nodes=8)
    wanted = await speculator.propose(one.committed, 5)
    assert speculator.following(one.committed, wanted) == Order(DraftFirst(4, (1,)))
    assert control.next == [({Source.MODEL: 1}, 5, 6)]
    play(one, speculator, chain(3), 0, 1, 9, 9)
    assert await speculator.propose(one.committed, 5, DraftFirst(4, (1,))) == DraftFirst(4, (1,))
    assert control.went == [Choice(Source.MODEL, 4, (1,))]


@pytest.mark.parametrize(
    ("choice", "room", "rounds"),
    [
        (Choice(Source.MODEL, 3), 1000, STANDS),
        (PLAIN, 1000, STANDS),
        (Choice(Source.MODEL, 3), 4 + 2 * 4, 2),  # after 4 tokens two more rounds of 4
        (Choice(Source.MODEL, 3), 4 + 3 * 4 - 1, 2),
        (Choice(Source.MODEL, 3, (2, 2, 1)), 4 + 4 + 8, 2),  # a tree of 8 nodes fits into the second round
        (Choice(Source.MODEL, 3, (2, 2, 1)), 4 + 4 + 7, 1),
        (PLAIN, 4 + 5, 5),
        (Choice(Source.MODEL, 3), 4 + 4, 1),
    ],
)
async def test_what_was_decided_stands_for_as_many_rounds_as_surely_fit(choice: Choice, room: int, rounds: int) -> None:
    """However many tokens of a round stand."""
    one, control = session(max_tokens=room), ScriptedControl(choice)
    speculator = own(one, control, Verifier())
    first = DraftFirst(3)
    await speculator.propose(one.committed, 5, first)
    then = DraftFirst(choice.length, choice.siblings) if choice.length else NO_PROPOSAL
    assert speculator.following(one.committed, first) == Order(then, rounds)


async def test_what_may_not_stand_is_for_one_round() -> None:
    """A probe is; so is a plain round where n-grams may find something after it."""
    one, control = session(max_tokens=1000), ScriptedControl(Choice(Source.MODEL, 1))
    control.is_settled = False
    speculator = own(one, control, Verifier())
    await speculator.propose(one.committed, 5, DraftFirst(3))
    assert speculator.following(one.committed, DraftFirst(3)) == Order(DraftFirst(1))
    speculator = own(one, ScriptedControl(), Verifier(drafts=False))
    assert await speculator.propose(one.committed, 5) is NO_PROPOSAL
    assert speculator.following(one.committed, NO_PROPOSAL) == Order(NO_PROPOSAL)
    assert Speculator(one, ScriptedControl(), {}).following(one.committed, NO_PROPOSAL) == Order(NO_PROPOSAL, STANDS)


def chain(length: int) -> Proposal:
    return Proposal(TokenTree.chain(range(length)), Source.MODEL)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (PLAIN, Order(NO_PROPOSAL, STANDS)),
        (Choice(Source.NGRAM, 2), None),
        (None, None),
        (Choice(Source.MODEL, 1), Order(DraftFirst(1), 4)),
    ],
)
async def test_ngrams_and_probes_wait_for_the_outcome(choice: Any, expected: Order | None) -> None:
    one, control = session(), ScriptedControl(PLAIN, choice)
    speculator = own(one, control, Verifier(), ngram=3)
    wanted = await speculator.propose(one.committed, 5)
    assert speculator.following(one.committed, wanted) == expected
    assert control.next == [({Source.NGRAM: 3, Source.MODEL: 1}, 5, 9)]


@pytest.mark.parametrize(("length", "longest"), [(4, 4), (8, 0)])
async def test_the_end_of_the_answer_is_never_passed(length: int, longest: int) -> None:
    one, control = session(budget=9), ScriptedControl(Choice(Source.MODEL, length), PLAIN)
    speculator = own(one, control, Verifier())
    assert await speculator.propose(one.committed, 9) == DraftFirst(length)
    order = speculator.following(one.committed, DraftFirst(length))
    assert order == Order(NO_PROPOSAL, 9 - length)
    assert [asked for _, asked, _ in control.next] == [longest]


async def test_nothing_follows_a_round_that_may_end_the_answer() -> None:
    one = session(budget=9)
    assert own(one, ScriptedControl(), Verifier()).following(one.committed, DraftFirst(9)) is None


async def test_on_a_verifier_without_a_draft_it_is_as_if_there_were_none() -> None:
    one, control = session(), ScriptedControl()
    speculator = own(one, control, Verifier(drafts=False))
    assert await speculator.propose(one.committed, 5) is NO_PROPOSAL
    assert speculator.following(one.committed, NO_PROPOSAL) == Order(NO_PROPOSAL)
    assert control.next == []


async def test_its_time_counts_but_for_its_first_guess_in_an_opening() -> None:
    """Also where the round began by itself."""
    one, verifier = session(max_tokens=50), Verifier()
    control = ScriptedControl(*[Choice(Source.MODEL, 1)] * 3)
    speculator = own(one, control, verifier)
    for promised in (None, None, DraftFirst(1), None):
        if len(control.results) == 3:
            verifier.opening = 2
        await speculator.propose(one.committed, 5, promised)
        play(one, speculator, chain(1), 0, 1)
    assert [result.propose_ms for result in control.results] == [None, 3.0, 3.0, None]


async def test_the_drafts_trouble_is_the_reason() -> None:
    verifier = Verifier()
    speculator = own(session(), ScriptedControl(), verifier)
    assert speculator.fallback_reason == ""
    verifier.draft_trouble = "it has nothing"
    assert speculator.fallback_reason == "it has nothing"
