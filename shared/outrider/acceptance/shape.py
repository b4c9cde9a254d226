"""The shape of proposals: a main chain, and siblings beside its tokens. Which nodes are worth their place in a step.

A node's gain is the chance that it stands, which is what it adds to the expected tokens of its round: the draft's first
choice at depth d with the chance that all first choices down to it stand, a sibling with the chance that those above it
stand and that at its own depth all likelier choices fall and it does not. The events exclude each other, so gains add
up; and no node gains more than the one it needs (the chain above it, the likelier ones beside it), so taking the nodes
in the order of their gains is the best that any number of nodes can do. One order holds for all sessions that share
a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import merge
from itertools import islice

from outrider.acceptance.tree import ROOT, TokenTree

Gains = tuple[tuple[float, ...], ...]
"""By depth from 1, the gain of the first choice, the second, ...; neither rises with the depth, nor with the choice."""
Widths = tuple[int, ...]
"""By depth from 1, how many choices are proposed: 1 is the chain alone. Empty: no proposal."""


def gains(stands: Sequence[float], others: Sequence[float]) -> Gains:
    """Gains of every node of a proposal at most as long as `stands`.

    `stands`: by depth, the chance that the first choice stands, given that those before it did. `others`: the chance of
    the second choice where the first fell, of the third where those two fell, ... No choice counts for likelier than
    the one before it: what was measured otherwise is chance.
    """
    table: list[tuple[float, ...]] = []
    reached = 1.0
    for chance in stands:
        first = last = reached * chance
        left = reached - first
        row = [first]
        for other in others:
            gain = left * other
            if gain < last:
                last = gain
            left -= last
            row.append(last)
        table.append(tuple(row))
        reached = first
    return tuple(table)


def spread(budget: int, sessions: Sequence[Gains]) -> list[Widths]:
    """The most expected tokens that `budget` nodes in all can add to a step of these sessions, in their order.

    With many sessions and few nodes these are chains, or nothing. Nodes without any gain are left out.
    """
    nodes = merge(*(_in_order(session, table) for session, table in enumerate(sessions)))
    widths = [[0] * len(table) for table in sessions]
    for _, session, depth, _ in islice(nodes, budget):
        widths[session][depth] += 1
    return [tuple(width for width in each if width) for each in widths]


def shape(budget: int, table: Gains) -> Widths:
    """The same for one session alone."""
    return spread(budget, [table])[0]


def expected(widths: Widths, table: Gains) -> float:
    """Expected accepted tokens of a proposal of this shape."""
    return sum(sum(row[:width]) for width, row in zip(widths, table, strict=False))


def pruned(tree: TokenTree, widths: Widths) -> TokenTree:
    """What of a caterpillar belongs to a shape: the first so many tokens of each depth."""
    kept: list[int] = []
    seen = [0] * len(widths)
    for node, depth in enumerate(tree.depths()):
        if depth <= len(widths) and seen[depth - 1] < widths[depth - 1]:
            seen[depth - 1] += 1
            kept.append(node)
    return tree.of(kept)


def gains_in_order(sessions: Sequence[Gains]) -> list[float]:
    """The gains of all nodes of these sessions, in the order in which `spread` takes them."""
    return sorted((gain for table in sessions for row in table for gain in row if gain > 0.0), reverse=True)


def leaf_gains(table: Gains, length: int) -> list[float]:
    """The gains of the siblings that a chain of `length` may have, the largest first."""
    return sorted((gain for row in table[:length] for gain in row[1:] if gain > 0.0), reverse=True)


def siblings(count: int, table: Gains, length: int) -> tuple[int, ...]:
    """The best `count` siblings of a chain of `length`, by depth, down to the deepest that has any."""
    chain = tuple((math.inf, *row[1:]) for row in table[:length])
    beside = [width - 1 for width in shape(length + count, chain)]
    while beside and not beside[-1]:
        beside.pop()
    return tuple(beside)


def widths_of(length: int, siblings: Sequence[int]) -> Widths:
    """The shape of a chain of `length` with so many siblings by depth."""
    return tuple(1 + (siblings[depth] if depth < len(siblings) else 0) for depth in range(length))


def fall_of(tree: TokenTree, tokens: Sequence[int]) -> tuple[int, int, int | None]:
    """How a round with `tree` went that committed `tokens`: its first choices that stood, down to the first that fell;
    how many siblings this one had; and which of them stood, from 0 (None: none did).
    """
    if tree.is_chain:
        return min(len(tokens) - 1, len(tree)) if tokens else 0, 0, None
    node = ROOT
    for stood, token in enumerate(tokens):
        children = tree.children(node)
        if not children:
            return stood, 0, None
        if tree.tokens[children[0]] != token:
            others = [tree.tokens[child] for child in children[1:]]
            return stood, len(others), others.index(token) if token in others else None
        node = children[0]
    return len(tokens), 0, None


def _in_order(session: int, table: Gains) -> list[tuple[float, int, int, int]]:
    """A session's nodes as (-gain, session, depth, choice), the largest gain first, none before what it needs."""
    nodes = [
        (-gain, session, depth, choice)
        for depth, row in enumerate(table)
        for choice, gain in enumerate(row)
        if gain > 0.0
    ]
    nodes.sort()
    return nodes


def chances_in_flight(tree: TokenTree, firsts: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    """The chance that each node stands, given that the one it follows does: first choices come before their siblings.

    `firsts`: of the first choice at each depth of the tree; `others`: see `gains`.
    """
    ranks = [0] * len(firsts)
    rows = [gains((first,), others)[0] for first in firsts]
    found: list[float] = []
    for depth in tree.depths():
        row, rank = rows[depth - 1], ranks[depth - 1]
        found.append(row[rank] if rank < len(row) else 0.0)
        ranks[depth - 1] += 1
    return tuple(found)
