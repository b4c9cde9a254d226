"""Where the rows of a pass stand, and which tiles and splits compute them. Pure functions over arrays of integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.engine.batch import Feed
from outrider.engine.fused.borders import Ints, split_of

CHAIN = 1 << 30
"""The tree's first position, for rows that are in no tree."""


def place_tree(feed: Feed, end: int, positions: Ints, starts: Ints, paths: Ints) -> None:
    """The rows of a tree that branches: positions by depth, and each row's own path."""
    first_row = end - len(feed.tree) + feed.grown
    base = len(feed.sequence.cached) + len(feed.tokens)  # index in the cache of the tree's first node
    depths = feed.tree.depths()
    steps: list[list[int]] = []
    for node, parent in enumerate(feed.tree.parents):
        steps.append([*(steps[parent] if parent >= 0 else ()), base + node])
    for node in range(feed.grown, len(feed.tree)):
        row = first_row + node - feed.grown
        positions[row] = base - 1 + depths[node]
        paths[row, : depths[node]] = steps[node]
    starts[first_row:end] = base


def tiles_of(feeds: Sequence[Feed], positions: Ints, starts: Ints, counts: Ints, ends: Ints, height: int) -> list[Ints]:
    """First row, rows, first split and one after the last split of each tile, by first row."""
    branched = np.array([0 if feed.tree.is_chain else len(feed.tree) - feed.grown for feed in feeds])
    rows = counts - branched  # that see a chain of keys
    tiles = -(-rows // height)
    owner = np.repeat(np.arange(len(rows)), tiles)
    offset = (np.arange(len(owner)) - (np.cumsum(tiles) - tiles)[owner]) * height
    first = (ends - counts)[owner] + offset
    held = np.minimum(rows[owner] - offset, height)
    found = [first, held, np.zeros_like(first), split_of(positions[first + held - 1]) + 1]
    if not branched.any():
        return found
    for end, nodes in zip(ends.tolist(), branched.tolist(), strict=True):
        if not nodes:
            continue
        shared = int(split_of(starts[end - 1]))  # splits before the one in which the tree begins
        each = np.arange(end - nodes, end)
        groups = each[::height] if shared else each[:0]
        found[0] = np.concatenate((found[0], groups, each))
        found[1] = np.concatenate((found[1], np.minimum(end - groups, height), np.ones_like(each)))
        found[2] = np.concatenate((found[2], np.zeros_like(groups), np.full_like(each, shared)))
        found[3] = np.concatenate((found[3], np.full_like(groups, shared), split_of(positions[each]) + 1))
    order = np.argsort(found[0], kind="stable")
    return [column[order] for column in found]


def place_logit_rows(wanted: Ints, ends: Ints, logit_rows: Ints) -> None:
    """The last so many `wanted` rows of each feed, one after the other; the rest of `logit_rows` is 0."""
    owner = np.repeat(np.arange(len(wanted)), wanted)
    found = (ends - wanted)[owner] + np.arange(len(owner)) - (np.cumsum(wanted) - wanted)[owner]
    logit_rows[: len(found)] = found
    logit_rows[len(found) :] = 0
