"""A draft that need not wait for the host between tokens: everybody gets the same, alone or in passes with others."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor

from outrider.acceptance.params import Rule
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.batch import Feed
from outrider.engine.draft import DraftCore
from outrider.engine.drawn import BACK, BEFORE, NEXT, Drawn, Guessed, settled
from outrider.engine.engine import Engine
from outrider.engine.runner import Chains, Grown, Growth, Runner, Stem
from outrider.engine.sequence import NO_TREE
from outrider.protocol.items import DraftAhead, Drafted, DraftedAhead, Failed, Key, Propose
from outrider.sampling.draft import DraftRow
from outrider.sampling.plain import MOST_BESIDE
from outrider.sampling.ranking import rank_rows
from outrider.sampling.state import SamplingState
from tests.conftest import TinyModel
from tests.unit.engine.engines import make_engine, random_tokens
from tests.unit.engine.test_foresight import CHAIN, PROMPT, TREE, Draft

BASE = len(PROMPT)
PLAIN: dict[str, Any] = {"temperature": 0.9}
SHAPED: dict[str, Any] = {"temperature": 0.9, "frequency_penalty": 1.5}


class Stepwise:
    """What the fused runner does on the device, step by step with the tensors' mathematics; it passes no token over."""

    takes_drawn = False

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.passes = 0

    def __call__(self, feeds: Sequence[Feed], drawn: Drawn | None = None) -> Tensor:
        self.passes += 1
        return self.run(feeds, drawn)

    def prepare_chains(self) -> None:
        pass

    def rank(self, logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]) -> Chains:
        work = [DraftRow(state, place, ()) for state, own in zip(states, positions, strict=True) for place in own]
        usable = logits.isfinite().any(dim=1)
        ranked = rank_rows(torch.where(usable[:, None], logits, 0.0), work, 1 + MOST_BESIDE)
        scores = [0.0 if its else math.nan for its in usable.tolist()]
        return Chains([[tokens[0] for tokens in ranked]], [scores], [ranked])

    def settle(self, drawn: Tensor, rounds: Sequence[Guessed]) -> Drawn:
        return settle_on_host(drawn, rounds)

    def chains(
        self,
        stems: Sequence[Stem],
        states: Sequence[SamplingState],
        logits: Tensor,
        steps: int,
        beside: int,
        backs: Tensor | None = None,
    ) -> DrawnAlready:
        lengths = [
            stem.length - (int(backs[stem.back]) if backs is not None and stem.back >= 0 else 0) for stem in stems
        ]
        found = [self.rank(logits, states, [[length] for length in lengths])]
        while len(found) < steps:
            tokens = list(zip(*(step.tokens[0] for step in found), strict=True))
            # What is drawn beyond a session's room is nobody's: here the same token again.
            room = [stem.sequence.max_length - length for stem, length in zip(stems, lengths, strict=True)]
            feeds = [
                Feed(stem.sequence, own[:left] or own, at=length)
                for stem, own, left, length in zip(stems, tokens, room, lengths, strict=True)
            ]
            places = [[length + len(found)] for length in lengths]
            found.append(self.rank(self(feeds), states, places))
        return DrawnAlready(joined(found))

    def grow(self, growths: Sequence[Growth], steps: int, *, more: bool = False) -> Grown:
        found: list[Chains] = []
        rows = [[growth.newest] for growth in growths]
        states = [growth.state for growth in growths]
        for _ in range(steps + more):
            feeds, positions = [], []
            for growth, own in zip(growths, rows, strict=True):
                tree, size = growth.grown(own), len(growth.newest)
                feeds.append(Feed(growth.sequence, (), tree, grown=len(tree) - size))
                positions.append([len(growth.sequence.cached) + depth for depth in tree.depths()[-size:]])
            found.append(self.rank(self(feeds), states, positions))
            tokens = iter(found[-1].tokens[0])
            for own in rows:
                own.append(tuple(next(tokens) for _ in own[0]))
        return Grown(joined(found[:steps]), DrawnAlready(joined(found[steps:])) if more else None)


class DrawnAlready(NamedTuple):
    """Chains that nobody has to wait for."""

    chains: Chains

    @property
    def drawn(self) -> Drawn:
        tokens = torch.tensor(self.chains.tokens, dtype=torch.int32)
        return Drawn(tokens.flatten(), tokens.shape[1])

    def collected(self) -> Chains:
        return self.chains


def settle_on_host(drawn: Tensor, rounds: Sequence[Guessed]) -> Drawn:
    """What `outrider.engine.fused.settle` does on the device."""
    outcomes = torch.zeros(3, len(rounds), dtype=torch.int32)
    for session, (row, last, tokens) in enumerate(rounds):
        accepted = 0
        while accepted < len(tokens) and int(drawn[row + accepted]) == tokens[accepted]:
            accepted += 1
        outcomes[NEXT, session] = drawn[row + accepted]
        outcomes[BEFORE, session] = (last, *tokens)[accepted]
        outcomes[BACK, session] = len(tokens) - accepted
    return settled(outcomes)


def joined(steps: Sequence[Chains]) -> Chains:
    """One step after the other."""
    return Chains(
        *([each for step in steps for each in getattr(step, name)] for name in ("tokens", "scores", "ranked"))
    )


def slow_draft(directory: Path) -> Draft:
    """A draft that goes through the host for every token."""
    return Draft(DraftCore(make_engine(directory, kv_tokens=4096), max_proposal=31, lease_s=60))


def quick_draft(directory: Path) -> tuple[Draft, Stepwise]:
    """A draft that does not, and what runs its passes."""
    engine = make_engine(directory, kv_tokens=4096)
    engine._run = stepwise = Stepwise(engine._run)
    return Draft(DraftCore(engine, max_proposal=31, lease_s=60)), stepwise


def look_ahead(number: int, tree: TokenTree, length: int, branches: tuple[int, ...], *siblings: int) -> DraftAhead:
    """An item of the session `number`."""
    return DraftAhead(Key(number, 1, BASE), BASE, (), tree, length, branches, siblings)


def guess(number: int, length: int, *siblings: int) -> Propose:
    """An item of the session `number`."""
    return Propose(Key(number, 1, BASE), BASE, (), length, siblings)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(("tree", "branches"), [(CHAIN, (2, 1, 0, 3)), (TREE, (2, 1, 0, 2, 1)), (NO_TREE, (4,))])
def test_what_is_foreseen_is_the_same(
    tiny_model: TinyModel, tree: TokenTree, branches: tuple[int, ...], temperature: float
) -> None:
    directory = tiny_model("llama")
    quick, stepwise = quick_draft(directory)
    answers = []
    for draft in (slow_draft(directory), quick):
        draft.open(1, PROMPT, Rule.MATCH, {"temperature": temperature})
        (ahead,) = draft.run(look_ahead(1, tree, 4, branches, 2, 0, 1))
        assert isinstance(ahead, DraftedAhead)
        taken = ahead.foreseen[-1]
        history = (*PROMPT, *(tree.tokens[each] for each in tree.path(taken.node)), taken.next_token)
        history = (*history, *taken.proposal.tree.tokens[:3])
        answers.append((ahead, draft.propose(1, history, BASE, 2)))
    assert answers[0] == answers[1]
    assert len(answers[0][0].foreseen) == sum(branches)
    # The prompt, what is drafted ahead, the pass that nobody waits for, and the guess after it.
    assert stepwise.passes == 1 + (1 + 4) + 1 + (1 + 1)


ITEMS = (
    look_ahead(1, CHAIN, 3, (2, 1, 1, 2)),
    guess(2, 5, 1, 0, 2),
    look_ahead(3, TREE, 5, (1, 0, 1, 1, 1), 1),
    guess(4, 2),
    look_ahead(5, CHAIN, 3, (1, 1, 1, 1)),
    guess(6, 3),
    guess(7, 1),
)
SETTINGS = {5: (Rule.MATCH, SHAPED), 6: (Rule.REJECTION, PLAIN)}


@pytest.mark.parametrize("seed", range(6))
def test_in_passes_with_others_each_gets_what_it_gets_alone(tiny_model: TinyModel, seed: int) -> None:
    """Plain sessions and others, guesses and foresights of several lengths, which begin in different passes."""
    directory = tiny_model("llama")
    slow, (quick, _) = slow_draft(directory), quick_draft(directory)
    numbers = random.Random(seed)
    chosen = numbers.sample(ITEMS, k=numbers.randint(2, len(ITEMS)))
    expected = {}
    for item in chosen:
        number = item.key.session
        for draft in (slow, quick):
            draft.open(number, PROMPT, *SETTINGS.get(number, (Rule.MATCH, PLAIN)))
        (expected[number],) = slow.run(item)
    half = numbers.randint(1, len(chosen))
    replies: list[Any] = []
    for item in chosen[:half]:
        assert quick.core.handle(quick.peer, item) is None
    replies += [reply for _, reply in quick.core.step()]
    replies += quick.run(*chosen[half:])
    assert len(replies) == len(chosen)
    for reply in replies:
        theirs = expected[reply.key.session]
        if isinstance(reply, Drafted):
            assert reply.proposal.tree == theirs.proposal.tree
        else:
            assert reply == theirs
    for number in expected:  # and each goes on from a cache in which the right tokens stand
        if number in SETTINGS:
            continue
        after = (*PROMPT, *random_tokens(3, seed=number))
        assert quick.propose(number, after, BASE, 4) == slow.propose(number, after, BASE, 4)


def test_a_guess_beside_a_foresight_waits_for_no_pass_of_its_own(tiny_model: TinyModel) -> None:
    """It was a token a step of everybody's before: as many times as long as it has tokens."""
    quick, stepwise = quick_draft(tiny_model("llama"))
    quick.open(1, PROMPT, Rule.MATCH, PLAIN)
    quick.open(2, PROMPT, Rule.MATCH, PLAIN)
    for item in (look_ahead(1, CHAIN, 5, (1, 1, 1, 1)), guess(2, 5)):
        assert quick.core.handle(quick.peer, item) is None
    stepwise.passes = 0
    ((_, first),) = quick.core.step()
    assert (first.key.session, stepwise.passes) == (2, 1 + 4)
    ((_, second),) = quick.core.step()
    assert (second.key.session, stepwise.passes) == (1, 1 + 5)
    assert not quick.core.awaited


@pytest.mark.parametrize("item", [guess(1, 4), guess(1, 1), look_ahead(1, CHAIN, 2, (1, 1, 1, 1))])
def test_a_step_leaves_time_for_others_once(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, item: Any) -> None:
    monkeypatch.setattr(Engine, "computes_apart", True)
    quick, stepwise = quick_draft(tiny_model("llama"))
    quick.open(1, PROMPT, Rule.MATCH, PLAIN)
    assert quick.core.handle(quick.peer, item) is None
    begun: list[int] = []
    stepwise.passes = 0
    ((_, reply),) = quick.core.step(lambda: begun.append(stepwise.passes))
    assert reply.key == item.key
    assert len(begun) == 1


def test_a_session_in_which_nothing_can_be_drawn_fails_alone(tiny_model: TinyModel) -> None:
    quick, stepwise = quick_draft(tiny_model("llama"))
    for number in (1, 2, 3):
        quick.open(number, PROMPT, Rule.MATCH, PLAIN)
    items = [guess(1, 3), look_ahead(2, CHAIN, 2, (1, 1, 1, 1)), look_ahead(3, TREE, 2, (2, 0, 0, 0, 0))]
    real = stepwise.rank

    def spoilt(logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]) -> Chains:
        found = real(logits, states, positions)
        if len(positions) == 3:
            found.scores[0][2] = math.nan  # one of the second session's
        return found

    with mock.patch.object(stepwise, "rank", spoilt):
        replies = {reply.key.session: reply for reply in quick.run(*items)}
    assert isinstance(replies[2], Failed)
    assert isinstance(replies[1], Drafted)
    assert isinstance(replies[3], DraftedAhead)
    assert len(replies[3].foreseen) == 2


def test_more_ranks_than_the_kernels_name_are_ranked_by_the_tensors(tiny_model: TinyModel) -> None:
    directory = tiny_model("llama")
    quick, stepwise = quick_draft(directory)
    slow = slow_draft(directory)
    item = look_ahead(1, CHAIN, 2, (MOST_BESIDE + 1, 0, 0, 0))  # one of ten is in flight
    answers = []
    with mock.patch.object(stepwise, "rank", side_effect=AssertionError):
        for draft in (slow, quick):
            draft.open(1, PROMPT, Rule.MATCH, PLAIN)
            answers += draft.run(item) if draft is slow else [draft.core.handle(draft.peer, item)]
        with mock.patch.object(stepwise, "grow", return_value=None):
            quick.core.step()
    answers[1] = quick.run()[0]
    assert answers[0] == answers[1]
    assert len(answers[0].foreseen) == MOST_BESIDE + 1


def test_rows_of_some_sessions_are_theirs() -> None:
    from outrider.engine.session_rows import of_sessions

    logits = torch.arange(12.0).view(6, 2)
    assert of_sessions(logits, [True, False, True], [2, 3, 1]).tolist() == [[0.0, 1.0], [2.0, 3.0], [10.0, 11.0]]
    assert of_sessions(logits, [True, True], [2, 4]) is logits


def test_a_stop_token_ends_a_guess_on_the_way(tiny_model: TinyModel) -> None:
    directory = tiny_model("llama")
    slow, (quick, _) = slow_draft(directory), quick_draft(directory)
    slow.open(1, PROMPT, Rule.MATCH, PLAIN)
    tokens = slow.propose(1, PROMPT, BASE, 5).tree.tokens
    for number in (1, 2):
        quick.open(number, PROMPT, Rule.MATCH, PLAIN)
    for session in quick.core.sessions:
        session.stop_token_ids = frozenset({tokens[2]})
    replies = {reply.key.session: reply for reply in quick.run(guess(1, 5), look_ahead(2, NO_TREE, 5, (1,)))}
    stop = tokens.index(tokens[2])
    assert replies[1].proposal.tree == TokenTree.chain(tokens[: stop + 1])
    foreseen = replies[2].foreseen
    assert not foreseen or tokens[2] not in foreseen[0].proposal.tree.tokens[:-1]
    assert all(each.node == ROOT for each in foreseen)
