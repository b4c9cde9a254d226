"""Siblings that a draft proposes beside its tokens: the next likeliest of the same place, at no cost to its KV."""

from __future__ import annotations

import re
from typing import Any

import pytest

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import Proposal
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.draft import DraftCore
from outrider.protocol.items import DraftAhead, Drafted, DraftedAhead, Failed, Key, Propose
from tests.conftest import TinyModel
from tests.unit.engine.engines import make_engine, random_tokens
from tests.unit.engine.test_foresight import PROMPT, SETTINGS, Draft, assert_same, outcome

UNDER_MATCH = [pytest.param(options, id=str(options)) for rule, options in SETTINGS if rule is Rule.MATCH]
WIDTHS = (2, 0, 1)
CATERPILLAR = TokenTree.caterpillar((40, 41, 42), ((50, 51), (), (52,)))


@pytest.fixture
def draft(tiny_model: TinyModel) -> Draft:
    return Draft(DraftCore(make_engine(tiny_model("llama"), kv_tokens=4096), max_proposal=31, lease_s=60))


def guess(
    draft: Draft, number: int, history: tuple[int, ...], known: int, length: int, siblings: tuple[int, ...]
) -> Proposal:
    (drafted,) = draft.run(Propose(Key(number, 1, len(history)), known, history[known:], length, siblings))
    assert isinstance(drafted, Drafted)
    return drafted.proposal


def test_a_caterpillar_is_its_chain_and_then_its_leaves() -> None:
    assert TokenTree((40, 41, 42, 50, 51, 52), (-1, 0, 1, -1, -1, 1)) == CATERPILLAR
    assert CATERPILLAR.depths() == (1, 2, 3, 1, 1, 3)
    assert CATERPILLAR.depth == 3
    assert TokenTree.caterpillar((1, 2), ()) == TokenTree.chain((1, 2))
    assert TokenTree((), ()).depth == 0


@pytest.mark.parametrize("options", UNDER_MATCH)
def test_the_chain_is_the_one_without_siblings_and_they_are_the_next_likeliest(
    draft: Draft, options: dict[str, Any]
) -> None:
    """What a draft would foresee first after each part of the chain says what is likeliest there."""
    draft.open(1, PROMPT, Rule.MATCH, options)
    chain = draft.propose(1, PROMPT, len(PROMPT), 5)
    proposal = guess(draft, 1, PROMPT, len(PROMPT), 5, WIDTHS)
    tree = proposal.tree
    assert tree.truncated(5) == chain.tree
    widths = [len(tree.children(node)) - 1 for node in range(ROOT, 4)]
    assert widths == [2, 0, 1, 0, 0]
    for node in (ROOT, 1):
        history = (*PROMPT, *(tree.tokens[each] for each in tree.path(node)))
        draft.open(2 + node + 1, history, Rule.MATCH, options)
        item = DraftAhead(Key(2 + node + 1, 1, len(history)), len(history), (), TokenTree((), ()), 1, (3,))
        (ahead,) = draft.run(item)
        ranked = [each.next_token for each in ahead.foreseen]
        assert [tree.tokens[child] for child in tree.children(node)] == ranked[: len(tree.children(node))]


@pytest.mark.parametrize("options", UNDER_MATCH)
@pytest.mark.parametrize("accepted", [3, 5, 0, 2])
def test_whatever_the_target_took_the_next_guess_is_that_of_a_new_session(
    draft: Draft, options: dict[str, Any], accepted: int
) -> None:
    """Above all a sibling (nodes 3 to 5), whose KV was never computed: several rounds in a row."""
    draft.open(1, PROMPT, Rule.MATCH, options)
    known, history = len(PROMPT), PROMPT
    for _ in range(3):
        proposal = guess(draft, 1, history, known, 3, WIDTHS)
        known, history = len(history), outcome(history, proposal.tree, accepted, 77)
    draft.open(2, history, Rule.MATCH, options)
    alone = guess(draft, 2, history, len(history), 4, WIDTHS)
    assert_same(guess(draft, 1, history, known, 4, WIDTHS), alone)


@pytest.mark.parametrize("options", UNDER_MATCH)
def test_what_is_drafted_ahead_of_a_tree_has_the_siblings_that_it_would_have(
    draft: Draft, options: dict[str, Any]
) -> None:
    draft.open(1, PROMPT, Rule.MATCH, options)
    branches = (1, 1, 1, 2, 1, 0, 1)
    item = DraftAhead(Key(1, 1, len(PROMPT)), len(PROMPT), (), CATERPILLAR, 3, branches, WIDTHS)
    (ahead,) = draft.run(item)
    assert isinstance(ahead, DraftedAhead)
    assert sorted(each.node for each in ahead.foreseen) == [-1, 0, 1, 2, 2, 3, 5]
    for number, each in enumerate(ahead.foreseen, start=2):
        history = outcome(PROMPT, CATERPILLAR, each.node, each.next_token)
        draft.open(number, history, Rule.MATCH, options)
        assert_same(each.proposal, guess(draft, number, history, len(history), 3, WIDTHS))


@pytest.mark.parametrize("node", [3, 5, 2, ROOT])
def test_the_kv_of_a_leaf_in_flight_is_kept_where_it_is_taken(draft: Draft, node: int) -> None:
    """Drafting ahead runs the leaves too; the one that the target takes moves to its place."""
    options = {"temperature": 0.9}
    draft.open(1, PROMPT, Rule.MATCH, options)
    draft.run(DraftAhead(Key(1, 1, len(PROMPT)), len(PROMPT), (), CATERPILLAR, 2, (1,) * 7, WIDTHS[:2]))
    history = outcome(PROMPT, CATERPILLAR, node, 77)
    draft.open(2, history, Rule.MATCH, options)
    assert_same(guess(draft, 1, history, len(PROMPT), 4, WIDTHS), guess(draft, 2, history, len(history), 4, WIDTHS))


def test_sessions_with_and_without_siblings_share_their_passes(draft: Draft) -> None:
    base = len(PROMPT)
    wanted: list[tuple[int, ...]] = [(), (1, 1, 1, 1), (0, 3), (2,)]
    histories = [(*PROMPT, token) for token in random_tokens(4, seed=3)]
    for number, history in enumerate(histories, start=1):
        draft.open(number, history, Rule.MATCH, {"temperature": 0.9})
    alone = [guess(draft, number, histories[number - 1], base + 1, 4, wanted[number - 1]) for number in range(1, 5)]
    items = [Propose(Key(number, 1, base + 1), base + 1, (), 4, wanted[number - 1]) for number in range(1, 5)]
    together = {reply.key.session: reply.proposal for reply in draft.run(*items)}
    assert [together[number] for number in range(1, 5)] == alone
    assert [len(proposal) for proposal in alone] == [4, 8, 7, 6]


def test_after_a_stop_token_comes_nothing_but_beside_it_there_may_be_something(draft: Draft) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "logit_bias": ((0, 100.0),)}
    draft.open(1, PROMPT, Rule.MATCH, options)
    tree = guess(draft, 1, PROMPT, len(PROMPT), 4, (2, 2)).tree
    assert tree.parents == (-1, -1, -1)
    assert tree.tokens[0] == 0


@pytest.mark.parametrize(
    ("rule", "length", "siblings", "words"),
    [
        (Rule.REJECTION, 4, (1,), "siblings is .*must be empty under the rejection rule"),
        (Rule.BLOCK, 4, (0, 1), "siblings is .*must be empty under the block rule"),
        (Rule.MATCH, 2, (1, 1, 1), "siblings is 3, but must be at most max_tokens, 2, numbers"),
        (Rule.MATCH, 4, (20, 20), "is 44, but must be at most 31 in all"),
    ],
)
@pytest.mark.parametrize("ahead", [False, True])
def test_siblings_that_cannot_be_are_refused_by_name(
    draft: Draft, rule: Rule, length: int, siblings: tuple[int, ...], words: str, ahead: bool
) -> None:
    draft.open(1, PROMPT, rule, {"temperature": 0.9})
    key, base = Key(1, 1, len(PROMPT)), len(PROMPT)
    item = DraftAhead(key, base, (), TokenTree((), ()), length, (1,), siblings)
    (failed,) = draft.run(item if ahead else Propose(key, base, (), length, siblings))
    assert isinstance(failed, Failed)
    assert re.search(words, failed.message), failed.message
