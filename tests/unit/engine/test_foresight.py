"""What a draft drafts ahead is what it would draft once the outcome is known."""

from __future__ import annotations

import re
from typing import Any

import pytest

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import Proposal
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.draft import DraftCore
from outrider.engine.sessions import ReplicaPeer
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import Close, DraftAhead, Drafted, DraftedAhead, Failed, Key, Open, Opened, Propose
from tests.conftest import TinyModel
from tests.tiny_models import VOCABULARY_SIZE
from tests.unit.engine.engines import make_engine, random_tokens

PROMPT = tuple(random_tokens(21, seed=5))
CHAIN = TokenTree.chain(random_tokens(3, seed=6))
TREE = TokenTree((40, 41, 42, 43), (-1, -1, 0, 0))
SETTINGS: list[tuple[Rule, dict[str, Any]]] = [
    (Rule.MATCH, {"temperature": 0.0}),
    (Rule.MATCH, {"temperature": 0.9}),
    (Rule.MATCH, {"temperature": 0.9, "frequency_penalty": 1.5, "repetition_penalty": 1.3}),
    (Rule.REJECTION, {"temperature": 0.9, "presence_penalty": 0.7}),
    (Rule.BLOCK, {"temperature": 1.2}),
]


class Draft:
    """A draft's core without its thread."""

    def __init__(self, core: DraftCore) -> None:
        self.core = core
        worker: DeviceWorker[Any, Any] = DeviceWorker(core)
        self.peer: ReplicaPeer = worker.connect("test", lambda replies: None, vocabulary_size=VOCABULARY_SIZE)

    def run(self, *items: Any) -> list[Any]:
        """The replies to items that arrive together, in the order in which they come."""
        replies = [reply for item in items if (reply := self.core.handle(self.peer, item))]
        while self.core.busy:
            replies += [reply for _, reply in self.core.step()]
        return replies

    def open(self, number: int, history: tuple[int, ...], rule: Rule, options: dict[str, Any], room: int = 100) -> None:
        """A session of the test's prompt."""
        key = Key(number, 1, len(history))
        params = SamplingParams(**options)
        item = Open(key, history, len(PROMPT), len(history) + room, params, rule, seed=11, stop_token_ids=(0,))
        (opened,) = self.run(item)
        assert isinstance(opened, Opened)

    def propose(self, number: int, history: tuple[int, ...], known: int, length: int) -> Proposal:
        """A guess after `history`, of which the draft knows `known` tokens."""
        (drafted,) = self.run(Propose(Key(number, 1, len(history)), known, history[known:], length))
        assert isinstance(drafted, Drafted)
        return drafted.proposal


@pytest.fixture
def draft(tiny_model: TinyModel) -> Draft:
    return Draft(DraftCore(make_engine(tiny_model("llama"), kv_tokens=4096), max_proposal=31, lease_s=60))


def outcome(history: tuple[int, ...], tree: TokenTree, node: int, next_token: int) -> tuple[int, ...]:
    return (*history, *(tree.tokens[each] for each in tree.path(node)), next_token)


def assert_same(proposal: Proposal, expected: Proposal) -> None:
    """The same tokens of the same distributions, but for float32 rounding."""
    assert proposal.tree == expected.tree
    assert [q.token_ids for q in proposal.q] == [q.token_ids for q in expected.q]
    for q, other in zip(proposal.q, expected.q, strict=True):
        assert q.probabilities == pytest.approx(other.probabilities, abs=1e-4)


@pytest.mark.parametrize(("rule", "options"), SETTINGS, ids=str)
@pytest.mark.parametrize("tree", [CHAIN, TREE, TokenTree((), ())], ids=["chain", "tree", "plain"])
def test_each_proposal_is_the_one_that_would_be_drafted(
    draft: Draft, tree: TokenTree, rule: Rule, options: dict[str, Any]
) -> None:
    draft.open(1, PROMPT, rule, options)
    branches = (2, *range(1, len(tree) + 1))
    (ahead,) = draft.run(DraftAhead(Key(1, 1, len(PROMPT)), len(PROMPT), (), tree, 4, branches))
    assert isinstance(ahead, DraftedAhead)
    nodes = [each.node for each in ahead.foreseen]
    assert [nodes.count(node) for node in range(ROOT, len(tree))] == list(branches)
    for number, each in enumerate(ahead.foreseen, start=2):
        assert each.next_token not in {tree.tokens[child] for child in tree.children(each.node)}
        history = outcome(PROMPT, tree, each.node, each.next_token)
        draft.open(number, history, rule, options)
        assert_same(each.proposal, draft.propose(number, history, len(history), 4))


@pytest.mark.parametrize(("rule", "options"), SETTINGS, ids=str)
def test_after_it_the_session_goes_on_as_any_other(draft: Draft, rule: Rule, options: dict[str, Any]) -> None:
    """Whatever the outcome was: one that was foreseen, or one that was not."""
    draft.open(1, PROMPT, rule, options)
    known, history = len(PROMPT), PROMPT
    for turn in range(4):
        ahead_item = DraftAhead(Key(1, 1, len(history)), known, history[known:], CHAIN, 3, (2, 2, 2, 2))
        (ahead,) = draft.run(ahead_item)
        node, next_token = ahead.foreseen[turn].node, ahead.foreseen[turn].next_token
        known, history = len(history), outcome(history, CHAIN, node, 77 if turn == 2 else next_token)
    draft.open(2, history, rule, options)
    assert_same(draft.propose(1, history, known, 5), draft.propose(2, history, len(history), 5))


def test_the_likeliest_next_token_comes_first(draft: Draft) -> None:
    for rule, options in SETTINGS[:3]:
        draft.open(1, PROMPT, rule, options)
        (ahead,) = draft.run(DraftAhead(Key(1, 1, len(PROMPT)), len(PROMPT), (), TokenTree((), ()), 1, (3,)))
        assert ahead.foreseen[0].next_token == draft.propose(1, PROMPT, len(PROMPT), 1).tree.tokens[0]
        draft.run(Close(Key(1, 1, len(PROMPT))))


def test_sessions_that_guess_and_that_look_ahead_share_their_passes(draft: Draft) -> None:
    """Each gets what it gets alone."""
    base, options = len(PROMPT), {"temperature": 0.9}
    ahead = DraftAhead(Key(1, 1, base), base, (), CHAIN, 3, (1, 1, 1, 2))
    for number in (1, 2, 3):
        draft.open(number, PROMPT, Rule.MATCH, options)
    alone = (*draft.run(ahead), draft.propose(2, PROMPT, base, 4))
    third = DraftAhead(Key(3, 1, base), base, (), TREE, 2, (1, 1, 1, 1, 1))
    together = draft.run(ahead, Propose(Key(2, 1, base), base, (), 4), third)
    by_session = {reply.key.session: reply for reply in together}
    assert (by_session[1], by_session[2].proposal) == alone
    assert len(by_session[3].foreseen) == 5


def test_a_new_item_ends_it(draft: Draft) -> None:
    base = len(PROMPT)
    draft.open(1, PROMPT, Rule.MATCH, {"temperature": 0.9})
    draft.core.handle(draft.peer, DraftAhead(Key(1, 1, base), base, (), CHAIN, 3, (1, 1, 1, 2)))
    draft.core.step()
    draft.core.step()
    (reply,) = draft.run(Propose(Key(1, 1, base + 1), base, (77,), 4))
    draft.open(2, (*PROMPT, 77), Rule.MATCH, {"temperature": 0.9})
    assert reply.proposal == draft.propose(2, (*PROMPT, 77), base + 1, 4)


def test_near_its_end_a_session_foresees_less(draft: Draft) -> None:
    """Never more than it has room for; the likelier, longer paths stay."""
    base = len(PROMPT)
    draft.open(1, PROMPT, Rule.MATCH, {"temperature": 0.9}, room=len(CHAIN) + 7)
    (ahead,) = draft.run(DraftAhead(Key(1, 1, base), base, (), CHAIN, 3, (1, 1, 1, 2)))
    assert [each.node for each in ahead.foreseen] == [2, 2]
    draft.run(Close(Key(1, 1, base)))
    draft.open(1, PROMPT, Rule.MATCH, {"temperature": 0.9}, room=len(CHAIN))
    assert draft.run(DraftAhead(Key(1, 1, base), base, (), CHAIN, 3, (1, 1, 1, 2)))[0].foreseen == ()


@pytest.mark.parametrize(
    ("tree", "branches", "length", "words"),
    [
        (CHAIN, (1, 1), 3, "draft_ahead.branches is 2, but must be 4 numbers"),
        (CHAIN, (10, 10, 10, 10), 3, "draft_ahead.branches is 40, but must be at most 31"),
        (CHAIN, (1, 1, 1, 1), 32, "max_tokens is 32, but must be at most 31"),
        (TokenTree((1, 2), (0, 1)), (1, 1, 1), 3, r"parents\[0\]"),
        (TokenTree((VOCABULARY_SIZE,), (-1,)), (1, 1), 3, r"tokens\[0\]"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    draft: Draft, tree: TokenTree, branches: tuple[int, ...], length: int, words: str
) -> None:
    draft.open(1, PROMPT, Rule.MATCH, {"temperature": 0.9})
    (failed,) = draft.run(DraftAhead(Key(1, 1, len(PROMPT)), len(PROMPT), (), tree, length, branches))
    assert isinstance(failed, Failed)
    assert re.search(words, failed.message)
