"""What a verifier was told to begin by itself, and what the coordinator therefore expects."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.protocol.items import DraftFirst, FollowUp, Foreseen, Key
from outrider_coordinator.orders import MARGIN, Checked, Order, Orders, deepest

BASE = 5
COMMITTED = [0, 1, 2, 3, 4]


class Link:
    """Remembers what was said and which replies are expected."""

    def __init__(self) -> None:
        self.said: list[FollowUp] = []
        self.expected: list[Key] = []
        self.begun: list[Key] = []
        self.rounds = 0  # that may still follow

    def tell(self, item: FollowUp) -> int:
        self.said.append(item)
        return 7

    def expect_after(self, key: Key, most: int, rounds: int) -> None:
        assert not self.expected
        self.expected = [key._replace(base_length=key.base_length + length) for length in range(1, most + 1)]
        self.rounds = rounds

    def begin_after(self, key: Key, most: int) -> None:
        assert key in self.expected
        self.begun.append(key)
        self.expected = []
        self.expect_after(key, most, self.rounds - 1)

    def extend_after(self, key: Key, most: int, rounds: int) -> None:
        self.expected = [key._replace(base_length=key.base_length + length) for length in range(1, most + 1)]
        self.rounds += rounds

    def end_after(self, key: Key) -> None:
        assert all(key.base_length + 1 <= each.base_length for each in self.expected)
        self.expected, self.rounds = [], 0


def key(base: int) -> Key:
    return Key(1, 2, base)


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def orders(link: Link) -> Orders:
    stand_in: Any = link
    return Orders(stand_in, key)


def guess(*tokens: int) -> Proposal:
    return Proposal(TokenTree.chain(tokens), Source.MODEL)


@pytest.mark.parametrize("otherwise", [NO_PROPOSAL, DraftFirst(3, (1,)), None])
def test_the_order_says_what_follows(orders: Orders, link: Link, otherwise: Checked | None) -> None:
    assert orders.give(BASE, guess(9, 9).tree, otherwise=otherwise) == 7
    (item,) = link.said
    assert (item.key, item.foreseen) == (key(BASE), ())
    assert item.plainly is (otherwise is NO_PROPOSAL)
    assert item.draft_first == (otherwise if isinstance(otherwise, DraftFirst) else None)


@pytest.mark.parametrize("in_flight", [guess(10, 11, 12).tree, DraftFirst(3, (2,))])
def test_the_round_after_any_outcome_is_promised(orders: Orders, link: Link, in_flight: TokenTree | DraftFirst) -> None:
    """What the verifier drafts is not known when it is told what follows."""
    following = DraftFirst(2)
    orders.give(BASE, in_flight, otherwise=following)
    assert link.expected == [key(BASE + length) for length in (1, 2, 3, 4)]
    assert orders.promised(COMMITTED) is None  # the round has not ended
    for tokens in ([10, 11, 12, 13], [10, 99], [98]):
        orders._promised = 0, None  # (each round has one outcome)
        assert orders.promised(COMMITTED + tokens) is following
    orders.begin(BASE + 1)
    assert (link.begun, link.expected) == ([key(BASE + 1)], [])
    assert orders.promised([*COMMITTED, 98]) is None
    assert not orders.given(BASE)
    assert not orders.given(BASE + 1)


def test_a_foreseen_outcome_goes_before_what_follows_others(orders: Orders) -> None:
    drafted, following = guess(7, 8), DraftFirst(4)
    orders.give(BASE, guess(10).tree, (Foreseen(ROOT, 20, drafted), Foreseen(0, 21, NO_PROPOSAL)), otherwise=following)
    for tokens, expected in (([20], drafted), ([10, 21], NO_PROPOSAL), ([10, 20], following), ([21], following)):
        orders._promised = 0, None
        assert orders.promised(COMMITTED + tokens) is expected


def test_the_next_order_knows_nothing_of_the_one_before(orders: Orders, link: Link) -> None:
    orders.give(BASE, guess(10).tree, (Foreseen(ROOT, 20, guess(7)),), otherwise=DraftFirst(4))
    orders.begin(BASE + 1)
    orders.give(BASE + 1, NO_PROPOSAL.tree, otherwise=NO_PROPOSAL)
    assert link.expected == [key(BASE + 2)]
    assert orders.promised([*COMMITTED, 20, 20]) is NO_PROPOSAL


@pytest.mark.parametrize("then", [NO_PROPOSAL, DraftFirst(2, (3,))])
def test_an_order_may_stand_for_several_rounds(orders: Orders, link: Link, then: Checked) -> None:
    """It is said once; each round begins where the one before it ended, wherever that is."""
    most = deepest(then) + 1
    orders.give(BASE, guess(10, 11).tree, otherwise=then, rounds=3)
    assert [item.rounds for item in link.said] == [3]
    assert link.expected == [key(BASE + length) for length in range(1, 3 + 2 * most + 1)]
    tokens = list(COMMITTED)
    for left, count in ((2, 3), (1, most), (0, 1)):
        assert orders.promised(tokens) is None
        tokens += [7] * count
        assert orders.promised(tokens) is then
        orders.begin(len(tokens))
        assert link.begun[-1] == key(len(tokens))
        assert (link.rounds, len(link.expected)) == (left, left * most)
        assert orders.given(len(tokens)) is (left > 0)
    assert orders.promised([*tokens, 7]) is None
    orders.give(len(tokens), NO_PROPOSAL.tree, otherwise=then)
    assert len(link.said) == 2


def test_what_follows_an_order_is_asked_for_before_its_last_rounds(orders: Orders) -> None:
    assert orders.wants_more(BASE)  # nothing was said
    orders.give(BASE, NO_PROPOSAL.tree, otherwise=NO_PROPOSAL, rounds=MARGIN + 2)
    assert not orders.wants_more(BASE)
    orders.begin(BASE + 1)
    assert not orders.wants_more(BASE + 1)
    orders.begin(BASE + 2)
    assert orders.wants_more(BASE + 2)
    assert orders.standing(BASE + 2) == Order(NO_PROPOSAL, MARGIN)
    orders.extend(Order(DraftFirst(3)))
    assert not orders.wants_more(BASE + 2)
    assert orders.standing(BASE + 1) is None


def test_an_extension_follows_without_a_gap(orders: Orders, link: Link) -> None:
    """Round by round: what is promised, and where the last of the rounds to come may begin."""
    deep, flat = DraftFirst(3), DraftFirst(1)
    orders.give(BASE, guess(10, 11).tree, otherwise=deep, rounds=2)
    orders.extend(Order(flat, 2))
    assert link.said[1] == FollowUp(key(BASE), (), plainly=False, draft_first=flat, rounds=2, extends=True)
    tokens = list(COMMITTED)
    for then, left, most in ((deep, 3, 4 + 4 + 2), (deep, 2, 4 + 2), (flat, 1, 2), (flat, 0, 0)):
        tokens.append(7)
        assert orders.promised(tokens) is then
        orders.begin(len(tokens))
        assert (link.rounds, len(link.expected)) == (left, most)
    assert not orders.given(len(tokens))


def test_extensions_are_named_by_the_first_order(orders: Orders, link: Link) -> None:
    orders.give(BASE, NO_PROPOSAL.tree, otherwise=NO_PROPOSAL)
    for base in (BASE, BASE + 1, BASE + 2):
        orders.extend(Order(NO_PROPOSAL))
        orders.begin(base + 1)
    assert [(item.key, item.extends) for item in link.said] == [(key(BASE), False)] + 3 * [(key(BASE), True)]
    orders.begin(BASE + 4)
    orders.give(BASE + 4, NO_PROPOSAL.tree, otherwise=NO_PROPOSAL)
    orders.extend(Order(NO_PROPOSAL))
    assert link.said[-1].key == key(BASE + 4)


def test_what_extends_an_order_ends_with_it(orders: Orders) -> None:
    orders.give(BASE, NO_PROPOSAL.tree, otherwise=NO_PROPOSAL)
    orders.extend(Order(DraftFirst(3), 5))
    orders.end()
    orders.give(BASE + 1, NO_PROPOSAL.tree, otherwise=NO_PROPOSAL)
    orders.begin(BASE + 2)
    assert not orders.given(BASE + 2)


def test_rounds_that_follow_foreseen_outcomes_alone_are_expected(orders: Orders, link: Link) -> None:
    orders.give(BASE, guess(10, 11).tree, (Foreseen(ROOT, 20, guess(7)),), otherwise=None)
    assert link.expected == [key(BASE + length) for length in (1, 2, 3)]
    orders.begin(BASE + 1)
    assert link.expected == []


def test_a_foreseen_order_is_not_extended(orders: Orders) -> None:
    orders.give(BASE, guess(10).tree, (Foreseen(ROOT, 20, guess(7)),), otherwise=NO_PROPOSAL)
    assert not orders.wants_more(BASE)


def test_a_standing_order_can_be_ended_at_any_round(orders: Orders, link: Link) -> None:
    orders.give(BASE, NO_PROPOSAL.tree, otherwise=DraftFirst(2), rounds=3)
    orders.begin(BASE + 1)
    orders.end()
    assert not link.expected
    assert orders.promised([*COMMITTED, 7, 8]) is None
    assert not orders.given(BASE + 1)
