"""The integers of a pass on the fused path, against each of them written out row by row."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.batch import Feed
from outrider.engine.blocks import BlockPool
from outrider.engine.fused.borders import LONG_SPLIT, SHORT_SPLITS, TALL_FROM
from outrider.engine.fused.layout import CHAIN
from outrider.engine.fused.many import MANY, ManyChains
from outrider.engine.fused.plan import Plan, Shape
from outrider.engine.fused.slices import Slice
from outrider.engine.kv import SlotMoves
from outrider.engine.runner import Stem
from outrider.engine.sequence import NO_TREE, KvSequence
from tests.unit.engine.test_fused_plan import BLOCK_SIZE, SPARE, make_buffer

ROWS_PER_TILE = 4
POOL = BlockPool(40_000, BLOCK_SIZE)
LARGE, SMALL = make_buffer(), make_buffer(split_entries=700)
"""Kept, so that what earlier passes left in their memory would be seen."""


def make_sequence(cached: int, room: int) -> KvSequence:
    """A sequence whose blocks do not lie side by side."""
    sequence = KvSequence(POOL, SlotMoves(), [1], cached + room, "", share=False)
    sequence.cached = [0] * cached
    sequence.table.reverse()
    POOL.release(sequence.blocks)  # for the next one: nothing is computed here
    return sequence


@st.composite
def trees(draw: st.DrawFn, least: int = 0) -> TokenTree:
    size = draw(st.integers(least, 24))
    reach = draw(st.sampled_from([1, 2, 30]))  # 1: a chain
    parents = [draw(st.integers(max(ROOT, node - reach), node - 1)) for node in range(size)]
    return TokenTree(tuple(range(500, 500 + size)), tuple(parents))


CACHED = st.sampled_from([0, 5, 16, 100, 120, 127, 128, 131, 900, 1020, 1023, 1024, 1500, 1535, 1536, 2100])


@st.composite
def chains(draw: st.DrawFn) -> Feed:
    """A feed without a branch."""
    grown, nodes, tokens = draw(st.sampled_from([(0, 0, 1), (0, 0, 3), (0, 2, 1), (0, 7, 2), (2, 3, 0), (1, 9, 0)]))
    tree = TokenTree.chain(range(500, 500 + nodes))
    return Feed(make_sequence(draw(CACHED), 20), list(range(tokens)), tree, draw(st.booleans()), grown)


@st.composite
def feeds(draw: st.DrawFn) -> Feed:
    cached = draw(CACHED)
    grows = draw(st.booleans())
    tree = draw(trees(least=1)) if grows else draw(st.just(NO_TREE) | trees())
    grown = draw(st.integers(0, len(tree) - 1)) if grows else 0
    chain = 0 if grows else draw(st.sampled_from([1, 1, 1, 2, 5, 9, 40]))
    sequence = make_sequence(cached, chain + len(tree) + draw(st.sampled_from([0, 30])))
    return Feed(sequence, list(range(chain)), tree, draw(st.booleans()), grown)


def split_of(position: int) -> int:
    """Counted, not calculated."""
    ends = [128 * (split + 1) for split in range(SHORT_SPLITS)]
    while ends[-1] <= position:
        ends.append(ends[-1] + LONG_SPLIT)
    return next(split for split, end in enumerate(ends) if position < end)


def expected_rows(feed: Feed) -> list[dict[str, Any]]:
    """What each row of a feed is."""
    base, table = len(feed.sequence.cached), feed.sequence.table
    chain = [{"id": token, "index": base + n, "position": base + n} for n, token in enumerate(feed.tokens)]
    root = base + len(feed.tokens)  # where the tree begins
    nodes = [
        {
            "id": token,
            "index": root + node,
            "position": root - 1 + len(feed.tree.path(node)),
            "path": None if feed.tree.is_chain else [root + each for each in feed.tree.path(node)],
            "start": CHAIN if feed.tree.is_chain else root,
        }
        for node, token in enumerate(feed.tree.tokens)
    ]
    rows: list[dict[str, Any]] = [{"path": None, "start": CHAIN} | row for row in [*chain, *nodes[feed.grown :]]]
    for row in rows:
        row["slot"] = table[row["index"] // BLOCK_SIZE] * BLOCK_SIZE + row["index"] % BLOCK_SIZE
    return rows


def expected_tiles(rows: list[dict[str, Any]], first: int, height: int) -> list[tuple[int, int, int, int]]:
    """First row, rows, first split, one after the last split: the tiles of a feed's `rows`, from row `first` on.

    They have up to `height` rows.
    """
    alone = [place for place, row in enumerate(rows) if row["path"] is not None]
    chain = len(rows) - len(alone)
    tiles = [
        (first + place, min(height, chain - place), 0, split_of(rows[min(place + height, chain) - 1]["position"]) + 1)
        for place in range(0, chain, height)
    ]
    for place in alone:
        shared = split_of(rows[place]["start"])
        if shared and (place - chain) % height == 0:
            tiles.append((first + place, min(height, len(rows) - place), 0, shared))
        tiles.append((first + place, 1, shared, split_of(rows[place]["position"]) + 1))
    return tiles


def expected_slices(splits: list[int], tiles: list[tuple[int, int, int, int]], entries: int) -> list[Slice]:
    """As many rows at a time as `entries` suffice for, cut where no tile is."""
    borders = [row for row in range(1, len(splits) + 1) if not any(r < row < r + count for r, count, _, _ in tiles)]
    slices, row = [], 0
    while row < len(splits):
        stop = max(border for border in borders if border > row and sum(splits[row:border]) <= entries)
        before = sum(tile[0] < row for tile in tiles)
        slices.append(Slice(row, stop - row, before, sum(tile[0] < stop for tile in tiles) - before))
        row = stop
    return slices


def check(plan: Plan, batch: list[Feed], entries: int) -> None:
    """Compare every section."""
    shape = plan.shape
    by_feed = [expected_rows(feed) for feed in batch]
    rows = [row for each in by_feed for row in each]
    starts = [sum(map(len, by_feed[:number])) for number in range(len(batch))]
    many = len(rows) >= TALL_FROM and len(rows) > ROWS_PER_TILE * len(batch)
    tall = many and all(feed.tree.is_chain for feed in batch)
    height = 2 * ROWS_PER_TILE if tall else ROWS_PER_TILE
    tiles = [tile for each, first in zip(by_feed, starts, strict=True) for tile in expected_tiles(each, first, height)]

    def section(values: list[int], room: int, rest: int = 0) -> list[int]:
        return values + [rest] * (room - len(values))

    assert plan.ids.tolist() == section([row["id"] for row in rows], shape.rows)
    assert plan.positions.tolist() == section([row["position"] for row in rows], shape.rows)
    assert plan.slots.tolist() == section([row["slot"] for row in rows], shape.rows, SPARE * BLOCK_SIZE)
    assert plan.tree_starts.tolist() == section([row["start"] for row in rows], shape.rows, CHAIN)
    for column, name in enumerate(("tile_rows", "tile_counts", "tile_begins", "tile_ends")):
        assert getattr(plan, name).tolist() == section([tile[column] for tile in tiles], shape.tiles), name
    wanted = []
    for feed, first, each in zip(batch, starts, by_feed, strict=True):
        skipped = max(len(feed.tokens) - 1, 0)
        wanted += [*range(first + skipped, first + len(each))] if feed.want_logits else []
        blocks = feed.sequence.table[: max(row["index"] for row in each) // BLOCK_SIZE + 1]
        for row in range(first, first + len(each)):
            table = int(plan.row_tables[row])
            assert plan.tables[table : table + len(blocks)].tolist() == blocks.tolist()
            assert table > 0
    assert plan.logit_rows.tolist() == section(wanted, shape.logit_rows)
    assert plan.tables[0] == SPARE
    assert not plan.row_tables[len(rows) :].any()
    for number, row in enumerate(rows):
        if row["path"] is not None:
            assert plan.paths[number, : len(row["path"])].tolist() == row["path"]

    splits = [split_of(row["position"]) + 1 for row in rows]
    if sum(splits) <= entries:
        assert plan.slices == (Slice(0, shape.rows, 0, shape.tiles),)
        slices = [Slice(0, len(rows), 0, len(tiles))]
    else:
        slices = expected_slices(splits, tiles, entries)
        assert list(plan.slices) == slices
    places = [
        sum(splits[part.first_row : row])
        for part in slices
        for row in range(part.first_row, part.first_row + part.rows)
    ]
    assert plan.split_starts.tolist() == section(places, shape.rows)


@settings(max_examples=50, deadline=None)
@given(batch=st.lists(feeds(), min_size=1, max_size=7), spare=st.integers(0, 3), small=st.booleans())
def test_every_integer_of_a_pass(batch: list[Feed], spare: int, small: bool) -> None:
    buffer, entries = (SMALL, 700) if small else (LARGE, 6000)
    layout = buffer.lay_out(batch)
    assert len(layout) == sum(map(len, batch))
    shape = Shape(len(layout) + spare, layout.most_tiles + spare, len(layout.logit_rows) + spare, layout.tall)
    check(buffer.fill(layout, shape), batch, entries)


@settings(max_examples=30, deadline=None)
@given(batch=st.lists(chains(), min_size=MANY, max_size=MANY + 10), small=st.booleans())
def test_every_integer_of_a_pass_over_many_chains(batch: list[Feed], small: bool) -> None:
    buffer, entries = (SMALL, 700) if small else (LARGE, 6000)
    layout = buffer.lay_out(batch)
    assert isinstance(layout, ManyChains) is (len(layout) > len(batch))
    assert len(layout) == sum(map(len, batch))
    shape = Shape(len(layout) + 1, layout.most_tiles + 1, len(layout.logit_rows) + 1, layout.tall)
    check(buffer.fill(layout, shape), batch, entries)


def test_a_growing_tree_pass_by_pass() -> None:
    """Each pass adds a node to each of its branches; a node's path is its branch's."""
    in_flight, branches = TokenTree((1, 2, 3), (ROOT, 0, ROOT)), [ROOT, 0, 1, 2, 2]
    sequence = make_sequence(1021, 60)
    tree, newest = in_flight, branches
    for _ in range(6):
        grown = len(tree)
        tree = TokenTree((*tree.tokens, *[7] * len(newest)), (*tree.parents, *newest))
        newest = list(range(grown, len(tree)))
        batch = [Feed(sequence, (), tree, grown=grown)]
        layout = LARGE.lay_out(batch)
        check(LARGE.fill(layout, Shape(8, 16, 8)), batch, 6000)


def test_a_pass_that_has_no_room_is_not_written() -> None:
    layout = LARGE.lay_out([Feed(make_sequence(9, 9), [1, 2, 3])])
    with pytest.raises(AssertionError):
        LARGE.fill(layout, Shape(2, 1, 2))


@pytest.mark.parametrize("lengths", [[5], [1, 128, 1024, 1600, 7]])
def test_chains_begin_before_their_next_tokens(lengths: list[int]) -> None:
    sequences = [make_sequence(length, 20) for length in lengths]
    count, rows = len(lengths), len(lengths) + 3
    shape = Shape(rows, rows, rows)
    LARGE.fill_chains([Stem(sequence, len(sequence.cached)) for sequence in sequences], 9, shape)
    plan = LARGE.plan(shape)
    assert plan.positions.tolist() == [length - 1 for length in lengths] + [0] * 3
    assert plan.split_starts.tolist() == [row * (6000 // rows) for row in range(rows)]
    assert plan.tree_starts.tolist() == [CHAIN] * rows
    assert plan.tile_rows.tolist() == plan.logit_rows.tolist() == list(range(rows))
    assert plan.tile_counts.tolist() == [1] * rows
    assert plan.tile_begins.tolist() == [0] * rows
    assert plan.tile_ends.tolist() == [split_of(length) + 1 for length in lengths] + [1] * 3
    assert plan.tables[0] == SPARE
    assert plan.row_tables[count:].tolist() == [0] * 3
    for sequence, length, table in zip(sequences, lengths, plan.row_tables.tolist(), strict=False):
        blocks = sequence.table[: -(-(length + 8) // BLOCK_SIZE)]  # the ninth token is drawn, but not run
        assert array("i", plan.tables[table : table + len(blocks)].tolist()) == blocks
        assert table > 0


def test_chains_to_the_end_of_a_sessions_room_leave_the_others_their_tables() -> None:
    """What they draw beyond it goes to the spare block."""
    room, steps = 4 * BLOCK_SIZE, 6
    sequences = [make_sequence(room - 2, 2), make_sequence(50, 30), make_sequence(9, 90)]
    shape = Shape(4, 4, 4)
    LARGE.fill_chains([Stem(sequence, len(sequence.cached)) for sequence in sequences], steps, shape)
    plan = LARGE.plan(shape)
    for sequence, table in zip(sequences, plan.row_tables.tolist(), strict=False):
        reached = -(-(len(sequence.cached) + steps - 1) // BLOCK_SIZE)
        found = plan.tables[table : table + reached].tolist()
        assert array("i", found[: len(sequence.table)]) == sequence.table[:reached]
        assert found[len(sequence.table) :] == [SPARE] * max(0, reached - len(sequence.table))
