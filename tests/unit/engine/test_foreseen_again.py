"""The next round in flight is what was drafted ahead: its outcomes are known, and what comes of them is as without."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from outrider.acceptance.params import Rule
from outrider.acceptance.tree import TokenTree
from outrider.engine.foresight import NEARLY
from outrider.engine.runner import Grown
from outrider.engine.sequence import NO_TREE
from outrider.protocol.items import Advance, Close, DraftAhead, DraftedAhead, Failed, Foreseen, Key, Propose
from outrider.sampling.plain import MOST_BESIDE
from outrider.telemetry import metrics
from tests.conftest import TinyModel
from tests.tiny_models import VOCABULARY_SIZE
from tests.unit.engine.engines import random_tokens
from tests.unit.engine.test_drafting_together import quick_draft, slow_draft
from tests.unit.engine.test_foresight import PROMPT, SETTINGS, Draft, outcome

MATCHING = [each for each in SETTINGS if each[0] is Rule.MATCH]
OTHERS = [each for each in SETTINGS if each[0] is not Rule.MATCH]
LENGTH = 3
CHAIN = TokenTree.chain(random_tokens(LENGTH, seed=6))


class Counted:
    """A runner, and how many passes it has run."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.passes = 0

    def __call__(self, *arguments: Any) -> Any:
        self.passes += 1
        return self.run(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)


Made = Callable[[Path], tuple[Draft, Any]]  # with what counts its passes


class Life:
    """A session whose rounds are drafted ahead for; what comes of it has to be what a new session elsewhere is told."""

    def __init__(self, made: Made, directory: Path, rule: Rule, options: dict[str, Any], room: int = 200) -> None:
        self.draft, self.run = made(directory)
        self.elsewhere = slow_draft(directory)
        draft = self.draft
        self.settings = rule, options
        self.history, self.known = PROMPT, len(PROMPT)
        self.limit = len(PROMPT) + room
        draft.open(1, PROMPT, rule, options, room)
        self.passes = 0  # until the last reply

    def share(self) -> None:
        """From now on there is another session on the draft, which wants nothing."""
        self.draft.open(2, PROMPT, Rule.MATCH, {"temperature": 0.9})

    def ahead(self, tree: TokenTree, branches: tuple[int, ...] | None = None, *, last: bool = True) -> DraftedAhead:
        """Draft ahead of the round of `tree`, by default for two tokens after all of it; `last`: all passes are run."""
        branches = branches or (*[1] * len(tree), 2)
        core, base = self.draft.core, len(self.history)
        self.run.passes = 0
        item = DraftAhead(Key(1, 1, base), self.known, self.history[self.known :], tree, LENGTH, branches)
        self.known = base
        found = [reply] if (reply := core.handle(self.draft.peer, item)) else []
        while core.awaited:
            found += [reply for _, reply in core.step()]
        self.passes = self.run.passes
        if last:
            assert self.draft.run() == []
        (reply,) = found
        assert isinstance(reply, DraftedAhead)
        self.elsewhere.open(1, self.history, *self.settings, self.limit - base)
        (expected,) = self.elsewhere.run(DraftAhead(Key(1, 1, base), base, (), tree, LENGTH, branches))
        self.elsewhere.run(Close(Key(1, 1, base)))
        if self.passes:
            assert told(reply) == told(expected)
        else:  # what was drafted on for alone, without the least likely that come new to it
            there = told(reply)
            assert there == [each for each in told(expected) if each in there]
            assert len(there) >= NEARLY * len(expected.foreseen)
        return reply

    def follow(self, tree: TokenTree, chosen: Foreseen) -> TokenTree:
        """The round came to that; what is in flight now."""
        self.history = outcome(self.history, tree, chosen.node, chosen.next_token)
        return chosen.proposal.tree


def told(reply: DraftedAhead) -> list[Any]:
    """All of it but the probabilities, which passes of other sizes round otherwise."""
    return [
        (each.node, each.next_token, each.proposal.tree, [q.token_ids for q in each.proposal.q])
        for each in reply.foreseen
    ]


def slow(directory: Path) -> tuple[Draft, Counted]:
    """One that goes through the host for each token."""
    draft = slow_draft(directory)
    draft.core.engine._run = run = Counted(draft.core.engine._run)
    return draft, run


both = pytest.mark.parametrize("made", [slow, quick_draft])  # the other does not


@both
@pytest.mark.parametrize(("rule", "options"), MATCHING, ids=str)
def test_a_round_that_was_drafted_ahead_takes_a_pass_less(
    tiny_model: TinyModel, made: Made, rule: Rule, options: dict[str, Any]
) -> None:
    life, tree = Life(made, tiny_model("llama"), rule, options), CHAIN
    life.share()
    for turn in range(6):
        foreseen = life.ahead(tree).foreseen
        assert life.passes == LENGTH + (1 if turn == 0 else 0)
        tree = life.follow(tree, foreseen[(2 * turn + 3) % len(foreseen)])
        if turn == 3:  # less of it is proposed than was drafted, as near the end of an answer
            tree = TokenTree.chain(tree.tokens[:2])
        elif turn == 4:
            tree = NO_TREE


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_session_that_has_the_draft_to_itself_is_drafted_on_for(
    tiny_model: TinyModel, caplog: pytest.LogCaptureFixture, temperature: float
) -> None:
    """The likeliest outcome's own outcomes are there before they are asked for, round after round; others' are not.

    Where branches have to grow the last pass follows at once.
    """
    life, tree = Life(quick_draft, tiny_model("llama"), Rule.MATCH, {"temperature": temperature}), CHAIN
    for turn in range(6):
        foreseen = life.ahead(tree, (1, 1, 1, 6)).foreseen
        assert life.passes == (1 + LENGTH + 1 if turn == 0 else 0 if turn % 3 else LENGTH + 1)
        likely = next(each for each in foreseen if each.node == len(tree) - 1)
        tree = life.follow(tree, foreseen[-1] if turn % 3 == 2 else likely)
    assert "failed" not in caplog.text


def test_what_was_drafted_on_for_is_told_where_it_is_nearly_all_that_is_wanted(tiny_model: TinyModel) -> None:
    """What is wanted no more is not told; where much is new all are drafted again."""
    life, tree = Life(quick_draft, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9}), CHAIN
    for wanted, passes, count in [
        ((1, 1, 1, 1), LENGTH + 2, 4),
        ((1, 1, 0, 2), 0, 3),
        ((1, 1, 0, 1), 0, 3),
        ((1, 1, 1, 1), 0, 3),
        ((2, 1, 3, 1), LENGTH + 1, 7),
    ]:
        foreseen = life.ahead(tree, wanted).foreseen
        assert (life.passes, len(foreseen)) == (passes, count)
        tree = life.follow(tree, next(each for each in foreseen if each.node == len(tree) - 1))


def test_what_is_drafted_on_is_counted(tiny_model: TinyModel) -> None:
    """All of it that is drawn, and what is told of it later."""
    life, tree = Life(quick_draft, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9}), CHAIN
    with mock.patch.object(metrics, "drafted_on") as counter:
        likely = life.ahead(tree).foreseen[-2]
        drawn = sum(call.args[0] for call in counter.add.call_args_list)
        assert all(call.args[1] == {"state": "drawn"} for call in counter.add.call_args_list)
        assert drawn % LENGTH == 0
        counter.reset_mock()
        tree = life.follow(tree, likely)
        foreseen = life.ahead(tree, last=False).foreseen
    told = sum(len(each.proposal) for each in foreseen)
    assert counter.add.call_args_list == [mock.call(told, {"state": "told"})]
    assert 0 < told <= drawn


def test_who_drafts_on_gives_way(tiny_model: TinyModel) -> None:
    """To a session that came meanwhile; what was not drafted on for is drafted when it is asked for."""
    life = Life(quick_draft, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9})
    core = life.draft.core
    tree = life.follow(CHAIN, life.ahead(CHAIN, last=False).foreseen[-1])
    assert core.busy
    assert not core.awaited
    life.share()
    life.draft.core.handle(life.draft.peer, Propose(Key(2, 1, len(PROMPT)), len(PROMPT), (), LENGTH))
    life.run.passes = 0
    while core.busy:
        core.step()
    assert life.run.passes == LENGTH  # of the other's guess
    life.ahead(tree)
    assert life.passes == LENGTH


@pytest.mark.parametrize("room", range(4, 24, 2))
def test_the_end_of_the_room_is_the_end_of_what_is_drafted_on(tiny_model: TinyModel, room: int) -> None:
    life, tree = Life(quick_draft, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9}, room=room), CHAIN
    while life.limit - len(life.history) > len(tree):
        foreseen = life.ahead(tree).foreseen
        if not foreseen:
            break
        tree = life.follow(tree, foreseen[-1])


def test_what_cannot_be_drawn_after_the_newest_tokens_does_no_harm(tiny_model: TinyModel) -> None:
    """It is found out when it is asked for; the round that was told of goes on."""
    life = Life(quick_draft, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9})
    grow = life.run.grow

    def unusable_at_last(*arguments: Any, more: bool = False) -> Grown:
        found = grow(*arguments, more=more)
        if more:
            found.more.chains.scores[0][0] = math.nan
        return found

    with mock.patch.object(life.run, "grow", unusable_at_last):
        tree = life.follow(CHAIN, life.ahead(CHAIN).foreseen[-1])
    assert not life.draft.core.busy
    tree = life.follow(tree, life.ahead(tree).foreseen[-1])
    assert life.passes == 1 + LENGTH + 1
    life.ahead(tree)
    assert life.passes == 0


def test_what_cannot_be_drawn_where_nobody_asked_is_given_up(tiny_model: TinyModel) -> None:
    life = Life(quick_draft, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9})
    tree = life.follow(CHAIN, life.ahead(CHAIN, last=False).foreseen[-1])
    grow = life.run.grow

    def unusable(*arguments: Any, more: bool = False) -> Grown:
        found = grow(*arguments, more=more)
        found.chains.scores[-1][-1] = math.nan
        return found

    with mock.patch.object(life.run, "grow", unusable):
        assert life.draft.run() == []
    life.ahead(tree)
    assert life.passes == LENGTH + 1


@both
@pytest.mark.parametrize(("rule", "options"), OTHERS, ids=str)
def test_other_rules_rank_again(tiny_model: TinyModel, made: Made, rule: Rule, options: dict[str, Any]) -> None:
    """Their draws tell nothing of ranks, so no pass is run that nobody waits for."""
    life, tree = Life(made, tiny_model("llama"), rule, options), CHAIN
    for _ in range(3):
        foreseen = life.ahead(tree, last=False).foreseen
        assert not life.draft.core.busy
        assert life.passes == 1 + LENGTH
        tree = life.follow(tree, foreseen[-1])


@both
def test_what_is_not_known_is_ranked_in_a_first_pass(tiny_model: TinyModel, made: Made) -> None:
    """An outcome that was not foreseen, a proposal from elsewhere, too many wanted, or the last pass is missing."""
    life = Life(made, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9})
    life.share()
    tree = life.follow(CHAIN, life.ahead(CHAIN).foreseen[-1])
    tree = life.follow(tree, life.ahead(tree, (0, 0, 0, MOST_BESIDE + 2)).foreseen[-1])
    assert life.passes == 1 + LENGTH
    life.history = (*life.history[:-1], 77)
    life.ahead(tree)
    assert life.passes == 1 + LENGTH
    life.follow(tree, life.ahead(tree).foreseen[-1])
    tree = life.follow(CHAIN, life.ahead(CHAIN).foreseen[-1])
    assert life.passes == 1 + LENGTH
    tree = life.follow(tree, life.ahead(tree, last=False).foreseen[-1])
    assert life.passes == LENGTH
    life.ahead(tree)
    assert life.passes == 1 + LENGTH


def test_where_only_stop_tokens_may_follow_there_is_nothing_to_draft_for(tiny_model: TinyModel) -> None:
    """That is told at once, and the session goes on."""
    life = Life(slow, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9})
    tree = life.follow(CHAIN, life.ahead(CHAIN).foreseen[-1])
    session = life.draft.core.sessions.find(life.draft.peer, Key(1, 1, 0))
    usual, session.stop_token_ids = session.stop_token_ids, frozenset(range(VOCABULARY_SIZE))
    item = DraftAhead(Key(1, 1, len(life.history)), life.known, life.history[life.known :], tree, LENGTH, (1, 0, 1, 1))
    assert life.draft.core.handle(life.draft.peer, item) == DraftedAhead(item.key, ())
    assert not life.draft.core.busy
    session.stop_token_ids = usual
    life.known = len(life.history)
    life.ahead(tree)


def test_a_failure_while_it_grows_ends_its_session_alone(tiny_model: TinyModel) -> None:
    life = Life(quick_draft, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9})
    core = life.draft.core
    life.share()
    tree = life.follow(CHAIN, life.ahead(CHAIN).foreseen[-1])
    item = DraftAhead(Key(1, 1, len(life.history)), life.known, life.history[life.known :], tree, LENGTH, (1, 1, 1, 1))
    assert core.handle(life.draft.peer, item) is None
    with mock.patch.object(core.engine, "grow", side_effect=RuntimeError("a bug")):
        ((_, reply),) = core.step()
    assert isinstance(reply, Failed)
    assert reply.key == item.key
    assert [session.number for session in core.sessions] == [2]


def test_going_back_forgets_it(tiny_model: TinyModel) -> None:
    """Other tokens before the same ones: what was ranked after these is of another text."""
    life = Life(slow, tiny_model("llama"), Rule.MATCH, {"temperature": 0.9})
    first = life.follow(CHAIN, life.ahead(CHAIN).foreseen[-1])
    kept = len(life.history) - 1
    tree = life.follow(first, life.ahead(first).foreseen[-1])
    session = life.draft.core.sessions.find(life.draft.peer, Key(1, 1, 0))
    assert session.foresaw is not None
    life.history = (*life.history[:kept], 77, *life.history[kept + 1 :])
    assert life.draft.run(Advance(Key(1, 1, len(life.history)), kept, life.history[kept:])) == []
    assert session.foresaw is None
    life.known = len(life.history)
    life.ahead(tree)


@both
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
def test_whatever_comes_next_it_is_what_a_new_session_is_told(tiny_model: TinyModel, made: Made, seed: int) -> None:
    """Hits and misses, guesses between, longer and shorter and other proposals, to the end of the session's room."""
    numbers = random.Random(seed)
    rule, options = numbers.choice(SETTINGS)
    life, tree = Life(made, tiny_model("llama"), rule, options, room=numbers.randint(20, 120)), CHAIN
    quicker = 0
    while life.limit - len(life.history) > len(tree) + 3:
        branches = tuple(numbers.choices((0, 1, 2, 3), k=len(tree) + 1))
        foreseen = life.ahead(tree, branches if any(branches) else None, last=numbers.random() < 0.8).foreseen
        quicker += bool(foreseen) and life.passes <= LENGTH
        if foreseen and numbers.random() < 0.8:
            tree = life.follow(tree, numbers.choice(foreseen))
            tree = numbers.choice((tree, tree, tree, TokenTree.chain(tree.tokens[:2]), NO_TREE))
        else:
            life.history = (*life.history, *random_tokens(numbers.randint(1, 4), seed=numbers.randint(0, 99)))
            tree = TokenTree.chain(random_tokens(numbers.randint(0, 3), seed=numbers.randint(0, 99)))
            if numbers.random() < 0.5 and len(life.history) < life.limit:
                tree = life.draft.propose(1, life.history, life.known, 3).tree
                life.known = len(life.history)
        life.history = life.history[: life.limit - 1]
    if rule is Rule.MATCH:
        assert quicker


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_next_what_was_drafted_on_is_what_a_new_session_is_told(
    tiny_model: TinyModel, seed: int
) -> None:
    """Likely and unlikely outcomes, other numbers of them, shorter proposals, guesses, and others on the draft."""
    numbers = random.Random(seed)
    temperature = numbers.choice([0.0, 0.7, 1.0])
    life, tree = Life(quick_draft, tiny_model("llama"), Rule.MATCH, {"temperature": temperature}, room=180), CHAIN
    at_once, shared, branches = 0, False, (1, 1, 1, 3)
    while life.limit - len(life.history) > len(tree) + 3:
        if len(branches) != len(tree) + 1 or numbers.random() < 0.3:
            branches = (*numbers.choices((0, 1, 2), k=len(tree)), numbers.randint(1, 4))
        foreseen = life.ahead(tree, branches, last=numbers.random() < 0.9).foreseen
        at_once += bool(foreseen) and not life.passes
        if numbers.random() < 0.1:
            shared = not shared
            if shared:
                life.share()
            else:
                life.draft.run(Close(Key(2, 1, len(PROMPT))))
        if foreseen and numbers.random() < 0.9:
            likely = [each for each in foreseen if each.node == len(tree) - 1] or foreseen
            tree = life.follow(tree, likely[0] if numbers.random() < 0.7 else numbers.choice(foreseen))
            tree = TokenTree.chain(tree.tokens[:2]) if numbers.random() < 0.1 else tree
        else:
            life.history = (*life.history, *random_tokens(numbers.randint(1, 4), seed=numbers.randint(0, 99)))
            tree = CHAIN
            if numbers.random() < 0.5 and len(life.history) < life.limit:
                tree = life.draft.propose(1, life.history, life.known, 3).tree
                life.known = len(life.history)
        life.history = life.history[: life.limit - 1]
    assert at_once
