"""The integers of a pass on the fused path: a row's keys are summed once, split by split, whatever stands beside it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.batch import Feed
from outrider.engine.blocks import BlockPool
from outrider.engine.fused.borders import LONG_SPLIT, SHORT_SPLITS, split_of
from outrider.engine.fused.layout import CHAIN
from outrider.engine.fused.plan import Plan, PlanBuffer, Shape
from outrider.engine.kv import SlotMoves
from outrider.engine.sequence import NO_TREE, KvSequence

BLOCK_SIZE = 8
SPARE = 5000


def make_buffer(**options: int) -> PlanBuffer:
    settings = {"rows": 600, "table_entries": 4000, "split_entries": 6000, "shared_by": 4} | options
    return PlanBuffer(torch.device("cpu"), block_size=BLOCK_SIZE, spare_block=SPARE, **settings)


def make_feed(pool: BlockPool, cached: int, chain: int, tree: TokenTree = NO_TREE) -> Feed:
    sequence = KvSequence(pool, SlotMoves(), [1], cached + chain + len(tree) + 20, str(cached), share=False)
    sequence.cached = [0] * cached
    return Feed(sequence, [7] * chain, tree)


def grown_feed(pool: BlockPool, cached: int, tree: TokenTree, grown: int) -> Feed:
    """The last nodes of a tree whose first ones are in flight already."""
    whole = make_feed(pool, cached, 0, tree)
    return Feed(whole.sequence, (), tree, grown=grown)


def random_tree(seed: int, nodes: int) -> TokenTree:
    numbers = random.Random(seed)
    parents = [ROOT if node == 0 else numbers.randint(max(ROOT, node - 4), node - 1) for node in range(nodes)]
    return TokenTree(tuple(numbers.randrange(100) for _ in range(nodes)), tuple(parents))


def some_feeds(seed: int) -> list[Feed]:
    numbers, pool = random.Random(seed), BlockPool(4000, BLOCK_SIZE)
    feeds = [grown_feed(pool, numbers.choice([50, 1100]), random_tree(seed, 40), 33)] if seed % 2 else []
    return feeds + [
        make_feed(
            pool,
            cached=numbers.choice([0, 5, 120, 127, 128, 900, 1020, 1600, 2100]),
            chain=numbers.choice([1, 1, 2, 5, 40]),
            tree=random_tree(numbers.randrange(99), numbers.choice([0, 0, 1, 4, 30, 90])),
        )
        for _ in range(numbers.randint(1, 6))
    ]


def expected_keys(feed: Feed) -> list[list[int]]:
    """For each row of the feed the indices in its cache of the keys that it sees, by position."""
    base = len(feed.sequence.cached)
    rows = [list(range(base + place + 1)) for place in range(len(feed.tokens))]
    stem = list(range(base + len(feed.tokens)))
    rows += [
        [*stem, *(len(stem) + each for each in feed.tree.path(node))] for node in range(feed.grown, len(feed.tree))
    ]
    return rows


def seen_keys(plan: Plan, row: int, first: int, split: int) -> list[int]:
    """The slots of the keys that the kernel sums for `row` in a split of a tile that begins with the row `first`."""
    short = SHORT_SPLITS * 128
    start = split * 128 if split < SHORT_SPLITS else short + (split - SHORT_SPLITS) * LONG_SPLIT
    stop = start + (128 if split < SHORT_SPLITS else LONG_SPLIT)
    found = []
    for position in range(start, min(stop, int(plan.positions[row]) + 1)):
        level = position - int(plan.tree_starts[first])
        index = int(plan.paths[first, level]) if level >= 0 else position
        block = int(plan.tables[int(plan.row_tables[first]) + index // BLOCK_SIZE])
        found.append(block * BLOCK_SIZE + index % BLOCK_SIZE)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_every_row_sees_its_own_keys_once_and_in_order(seed: int) -> None:
    feeds = some_feeds(seed)
    buffer = make_buffer()
    layout = buffer.lay_out(feeds)
    shape = Shape(len(layout) + 3, layout.most_tiles + 2, 600, layout.tall)
    plan = buffer.fill(layout, shape)
    assert len(plan.slices) == 1
    splits: dict[int, dict[int, list[int]]] = {}
    for tile in range(shape.tiles):
        first, count = int(plan.tile_rows[tile]), int(plan.tile_counts[tile])
        for split in range(int(plan.tile_begins[tile]), int(plan.tile_ends[tile])):
            for row in range(first, first + count):
                keys = seen_keys(plan, row, first, split)
                if keys:
                    assert split not in splits.setdefault(row, {}), "a split is summed twice"
                    splits[row][split] = keys
    row = 0
    for feed in feeds:
        sequence = feed.sequence
        for place, indices in enumerate(expected_keys(feed)):
            found = [slot for split in sorted(splits[row]) for slot in splits[row][split]]
            assert found == [sequence._slot(index) for index in indices]
            assert int(plan.slots[row]) == sequence._slot(indices[-1])
            assert sorted(splits[row]) == list(range(int(split_of(np.array(len(indices) - 1))) + 1))
            assert int(plan.ids[row]) == feed.ids()[place]
            row += 1
    assert (plan.slots[row:] == SPARE * BLOCK_SIZE).all(), "rows beyond the real ones write to the spare block"


@pytest.mark.parametrize("seed", range(6))
def test_slices_hold_what_the_workspace_does(seed: int) -> None:
    feeds = some_feeds(seed)
    buffer = make_buffer(split_entries=1400)
    layout = buffer.lay_out(feeds)
    shape = Shape(len(layout), layout.most_tiles, 600, layout.tall)
    plan = buffer.fill(layout, shape)
    slices = plan.slices
    assert [part.first_row for part in slices] == [0, *np.cumsum([part.rows for part in slices])[:-1].tolist()]
    assert sum(part.rows for part in slices) == shape.rows
    for part in slices:
        rows = range(part.first_row, part.first_row + part.rows)
        used = [
            int(plan.split_starts[row]) + split
            for row in rows
            for split in range(int(split_of(plan.positions[row].numpy())) + 1)
        ]
        assert len(set(used)) == len(used)
        assert max(used) < 1400
        for tile in range(part.first_tile, part.first_tile + part.tiles):
            if int(plan.tile_ends[tile]) > int(plan.tile_begins[tile]):
                first, count = int(plan.tile_rows[tile]), int(plan.tile_counts[tile])
                assert {*range(first, first + count)} <= {*rows}


def test_logit_rows_are_the_last_of_each_chain_and_the_nodes() -> None:
    pool = BlockPool(100, BLOCK_SIZE)
    feeds = [make_feed(pool, 3, 4), make_feed(pool, 9, 2, TokenTree((1, 2), (ROOT, ROOT)))]
    buffer = make_buffer()
    layout = buffer.lay_out(feeds)
    plan = buffer.fill(layout, Shape(8, layout.most_tiles, 8))
    assert plan.logit_rows.tolist() == [3, 5, 6, 7, 0, 0, 0, 0]
    assert plan.tree_starts.tolist() == [CHAIN] * 6 + [11, 11]


def test_tables_that_do_not_fit_are_told() -> None:
    pool = BlockPool(1000, BLOCK_SIZE)
    feeds = [make_feed(pool, 800, 1) for _ in range(3)]
    assert make_buffer(table_entries=400).fits(feeds)
    assert not make_buffer(table_entries=200).fits(feeds)
    assert make_buffer(table_entries=200).fits(feeds[:1])
