"""What the speculator asks of its drafters, and what it passes on of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.acceptance.choice import PLAIN, Choice
from outrider.acceptance.control import DraftControl, Policy, Round
from outrider.acceptance.costs import RoundCosts
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, Verdict
from outrider.acceptance.tree import TokenTree
from outrider_coordinator.session import Session
from outrider_coordinator.speculator import Speculator
from tests.unit.coordinator.test_session import session


class ScriptedControl(DraftControl):
    """Chooses what it is told to; remembers what it was asked and told."""

    def __init__(self, *choices: Choice) -> None:
        super().__init__(RoundCosts(), Policy())
        self.choices = list(choices)
        self.asked: list[tuple[dict[Source, int], int]] = []
        self.results: list[Round] = []

    def decide(self, levels: Any, longest: int, at_hand: int = 0, nodes: int = 63) -> Choice:
        self.asked.append((dict(levels), longest))
        return self.choices.pop(0) if levels else PLAIN

    def record(self, result: Round) -> bool:
        self.results.append(result)
        return False


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

    async def propose(self, committed: Sequence[int], choice: Choice) -> Proposal:
        self.lengths.append(choice.length)
        return Proposal(TokenTree.chain(range(choice.length)), self._source)

    async def close(self) -> None:
        self.closed = True


def play(one: Session, speculator: Speculator, proposal: Proposal, *next_tokens: int) -> None:
    delta = one.commit(proposal, Verdict(next_tokens))
    speculator.learn(proposal, delta, propose_ms=3.0, verify_ms=7.0)


async def test_it_offers_what_can_propose_and_asks_the_chosen_one_for_the_chosen_length() -> None:
    one = session()
    ngram, model = CountingUp(Source.NGRAM, 0), CountingUp(Source.MODEL, 1)
    control = ScriptedControl(Choice(Source.MODEL, 2), PLAIN)
    speculator = Speculator(one, control, {Source.NGRAM: ngram, Source.MODEL: model})
    assert len(await speculator.propose(one.committed, 5)) == 2
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
        expected = Round(2, 1, 2, 3.0, 7.0) if up_to_date else Round(2, 1, 2, None, None)
        assert control.results == [expected]


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
