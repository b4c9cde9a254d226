"""The shape of proposals: the best for their number of nodes, against trying every other."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.shape import (
    Gains,
    Widths,
    expected,
    fall_of,
    gains,
    gains_in_order,
    leaf_gains,
    pruned,
    shape,
    siblings,
    spread,
    widths_of,
)
from outrider.acceptance.tree import TokenTree

chance = st.floats(0, 1)
tables = st.builds(gains, st.lists(chance, max_size=3), st.lists(chance, max_size=2))
TREE = TokenTree.caterpillar((1, 2, 3), ((4, 5), (), (6,)))


def every_shape(table: Gains) -> list[Widths]:
    """Each caterpillar that the table allows, the empty one too."""
    found: list[Widths] = [()]
    for depth in range(1, len(table) + 1):
        found += itertools.product(*(range(1, len(row) + 1) for row in table[:depth]))
    return found


def test_gains_are_the_chances_of_standing() -> None:
    first, second = gains((0.5, 0.8), (0.4, 0.25))
    assert first == pytest.approx((0.5, 0.5 * 0.4, 0.3 * 0.25))
    assert second == pytest.approx((0.4, 0.1 * 0.4, 0.06 * 0.25))


def test_they_are_what_happens() -> None:
    """Played: the walk down a caterpillar of this shape, and what it accepts."""
    stands, others, widths = (0.6, 0.7, 0.5), (0.5, 0.3), (3, 1, 2)
    draw, total, rounds = random.Random(5), 0, 40_000
    for _ in range(rounds):
        for place, width in enumerate(widths):
            if draw.random() < stands[place]:
                total += 1
                continue
            total += any(draw.random() < other for other in others[: width - 1])
            break
    assert total / rounds == pytest.approx(expected(widths, gains(stands, others)), abs=0.02)


@given(tables)
def test_no_node_gains_more_than_the_one_it_needs_and_together_they_are_chances(table: Gains) -> None:
    for row in table:
        assert list(row) == sorted(row, reverse=True)
    firsts = [row[0] for row in table]
    assert firsts == sorted(firsts, reverse=True)
    reached = 1.0
    for row in table:
        assert sum(row) <= reached + 1e-9
        reached = row[0]


@given(tables, st.integers(0, 12))
def test_no_other_shape_of_as_many_nodes_is_expected_to_bring_more(table: Gains, budget: int) -> None:
    found = shape(budget, table)
    assert sum(found) <= budget
    assert found in every_shape(table)
    best = max(expected(each, table) for each in every_shape(table) if sum(each) <= budget)
    assert expected(found, table) == pytest.approx(best)


@given(st.lists(tables, max_size=3), st.integers(0, 9))
def test_nor_any_other_division_among_sessions(sessions: list[Gains], budget: int) -> None:
    found = spread(budget, sessions)
    assert sum(map(sum, found)) <= budget
    # What each number of nodes brings at most in each session, and the best sum over all divisions.
    best = [0.0] * (budget + 1)
    for table in sessions:
        alone = [
            max(expected(each, table) for each in every_shape(table) if sum(each) <= nodes)
            for nodes in range(budget + 1)
        ]
        best = [max(best[n - own] + alone[own] for own in range(n + 1)) for n in range(budget + 1)]
    brought = sum(expected(widths, table) for widths, table in zip(found, sessions, strict=True))
    assert brought == pytest.approx(best[budget])


@given(st.lists(tables, min_size=1, max_size=3), st.integers(0, 9))
def test_a_larger_budget_only_adds(sessions: list[Gains], budget: int) -> None:
    for less, more in zip(spread(budget, sessions), spread(budget + 1, sessions), strict=True):
        assert len(less) <= len(more)
        assert all(a <= b for a, b in zip(less, more, strict=False))


def test_many_sessions_make_trees_into_chains_and_chains_into_nothing() -> None:
    """A step of 64 nodes, sessions whose tokens stand at 8 in 10."""
    table = gains((0.8,) * 8, (0.5, 0.3))
    few = spread(64, [table] * 4)
    assert all(len(widths) == 8 and max(widths) == 3 for widths in few)
    many = spread(64, [table] * 24)
    assert all(max(widths) == 1 and 2 <= len(widths) <= 3 for widths in many)
    most = spread(64, [table] * 128)
    assert sum(map(len, most)) == 64
    assert sum(not widths for widths in most) == 64


def test_the_likelier_session_gets_more() -> None:
    good, poor = gains((0.9,) * 6, (0.5,)), gains((0.4,) * 6, (0.3,))
    of_good, of_poor = spread(8, [good, poor])
    assert sum(of_good) > 2 * sum(of_poor)


@given(st.lists(tables, min_size=1, max_size=3), st.integers(0, 9))
def test_a_price_is_another_way_to_say_a_budget(sessions: list[Gains], budget: int) -> None:
    """Who takes every node that gains more than the first one left out takes what the budget gives, but for ties."""
    order = gains_in_order(sessions)
    price = order[budget] if budget < len(order) else 0.0
    for widths, table in zip(spread(budget, sessions), sessions, strict=True):
        above = [sum(gain > price for gain in row) for row in table]
        at_least = [sum(gain >= price for gain in row) for row in table]
        for place, width in enumerate((*widths, *[0] * (len(table) - len(widths)))):
            assert above[place] <= width <= at_least[place]


def test_siblings_are_the_likeliest_of_the_chains_own_places() -> None:
    table = gains((0.5, 0.5, 0.5), (0.5, 0.5))
    assert leaf_gains(table, 2) == pytest.approx([0.25, 0.125, 0.125, 0.0625])
    assert leaf_gains(table, 0) == []
    assert siblings(0, table, 2) == ()
    assert siblings(1, table, 3) == (1,)
    assert siblings(3, table, 2) == (2, 1)
    assert siblings(99, table, 3) == (2, 2, 2)
    assert siblings(1, gains((0.9, 0.1), (0.8,)), 2) == (0, 1)
    assert widths_of(4, (2, 0, 1)) == (3, 1, 2, 1)
    assert widths_of(1, (2, 0, 1)) == (3,)


def test_pruning_keeps_the_likelier_tokens_of_each_depth() -> None:
    assert pruned(TREE, (3, 1, 2)) == TREE
    assert pruned(TREE, (2, 1)) == TokenTree.caterpillar((1, 2), ((4,),))
    assert pruned(TREE, (9, 9, 9)) == TREE
    assert pruned(TREE, (1, 1, 1, 1)) == TokenTree.chain((1, 2, 3))
    assert pruned(TREE, ()) == TokenTree((), ())


@pytest.mark.parametrize(
    ("tokens", "fall"),
    [
        ((9,), (0, 2, None)),  # the first choice fell, and both siblings
        ((4, 9), (0, 2, 0)),
        ((5, 9), (0, 2, 1)),
        ((1, 9), (1, 0, None)),  # nothing beside the second token
        ((1, 2, 6, 9), (2, 1, 0)),
        ((1, 2, 9), (2, 1, None)),
        ((1, 2, 3, 9), (3, 0, None)),  # all stood
    ],
)
def test_how_a_round_fell(tokens: tuple[int, ...], fall: tuple[int, int, int | None]) -> None:
    assert fall_of(TREE, tokens) == fall


def test_how_a_chain_fell() -> None:
    assert fall_of(TokenTree.chain((1, 2)), (9,)) == (0, 0, None)
    assert fall_of(TokenTree.chain((1, 2)), (1, 2, 9)) == (2, 0, None)
    assert fall_of(TokenTree((), ()), (9,)) == (0, 0, None)
