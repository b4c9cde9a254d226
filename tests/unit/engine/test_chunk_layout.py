"""Chunks of prompts in a pass: tiles of their own, before the others, and no room in the workspace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from outrider.engine.batch import Feed
from outrider.engine.blocks import BlockPool
from outrider.engine.fused import plan as plans
from outrider.engine.fused.borders import split_at
from outrider.engine.fused.layout import Chunks, Layout, Tiling
from outrider.engine.fused.many import MANY, ManyChains
from outrider.engine.fused.plan import Plan, PlanBuffer, Shape
from tests.unit.engine.test_fused_plan import BLOCK_SIZE, SPARE, make_buffer, make_feed, random_tree, seen_keys

HEIGHT = 16
CACHED = [0, 5, 120, 128, 900, 1020, 1600, 2100]


@pytest.fixture(autouse=True)
def _few_rows_are_many() -> Iterator[None]:
    with patch.object(plans, "COMMON_ROWS", 60):
        yield


def some_feeds(seed: int, *, branching: bool) -> list[Feed]:
    """At least one chunk among others, in any order."""
    numbers, pool = random.Random(seed), BlockPool(8000, BLOCK_SIZE)
    feeds = [make_feed(pool, numbers.choice(CACHED), numbers.choice([32, 61, 100])) for _ in range(2)]
    feeds += [make_feed(pool, numbers.choice(CACHED), numbers.choice([1, 2, 31])) for _ in range(numbers.randint(0, 4))]
    if branching:
        feeds += [make_feed(pool, numbers.choice(CACHED), chain, random_tree(seed, 20)) for chain in (1, 40)]
    numbers.shuffle(feeds)
    return feeds


def filled(buffer: PlanBuffer, feeds: list[Feed]) -> Plan:
    layout = buffer.lay_out(feeds)
    shape = Shape(len(layout), layout.most_tiles, 600, layout.tall, layout.chunk_tiles)
    return buffer.fill(layout, shape)


def is_chunk(feed: Feed) -> bool:
    return len(feed) >= 2 * HEIGHT and feed.tree.is_chain


@pytest.mark.parametrize("entries", [6000, 1400])
@pytest.mark.parametrize("seed", range(12))
def test_chunks_have_tiles_of_their_own_and_all_rows_see_their_keys(seed: int, entries: int) -> None:
    feeds = some_feeds(seed, branching=seed % 2 == 1)
    plan = filled(make_buffer(split_entries=entries, chunk_height=HEIGHT), feeds)
    owner = [feed for feed in feeds for _ in range(len(feed))]
    seen: dict[int, list[int]] = {}
    for tile in range(plan.shape.tiles):
        first, count = int(plan.tile_rows[tile]), int(plan.tile_counts[tile])
        begin, end = int(plan.tile_begins[tile]), int(plan.tile_ends[tile])
        for row in range(first, first + count):
            assert is_chunk(owner[row]) == (tile < plan.shape.chunk_tiles)
            for split in range(begin, end):
                seen.setdefault(row, []).extend(seen_keys(plan, row, first, split))
        if tile < plan.shape.chunk_tiles:
            positions = plan.positions[first : first + count].tolist()
            assert count <= HEIGHT
            assert positions == list(range(positions[0], positions[0] + count)), "the kernel takes that for granted"
            assert (begin, end) == (0, split_at(positions[-1]) + 1)
    row = 0
    for feed in feeds:
        for place in range(len(feed)):
            if feed.tree.is_chain:
                stop = len(feed.sequence.cached) + place + 1
                assert seen[row] == [feed.sequence._slot(index) for index in range(stop)]
            assert int(plan.ids[row]) == feed.ids()[place]
            row += 1


@pytest.mark.parametrize("seed", range(8))
def test_slices_are_of_the_others_alone(seed: int) -> None:
    feeds = some_feeds(seed, branching=True)
    plan = filled(make_buffer(split_entries=500, chunk_height=HEIGHT), feeds)
    owner = [feed for feed in feeds for _ in range(len(feed))]
    tiles = [tile for part in plan.slices for tile in range(part.first_tile, part.first_tile + part.tiles)]
    others = [tile for tile in range(plan.shape.chunk_tiles, plan.shape.tiles) if plan.tile_ends[tile]]
    assert tiles[: len(others)] == others, "all, and beyond them at most what there is room for"
    for part in plan.slices:
        used: list[int] = []
        for row in range(part.first_row, part.first_row + part.rows):
            if not is_chunk(owner[row]):
                start = int(plan.split_starts[row])
                used += range(start, start + split_at(int(plan.positions[row])) + 1)
        assert len(set(used)) == len(used)
        assert max(used, default=0) < 500


@pytest.mark.parametrize("seed", range(4))
def test_many_chains_are_laid_out_as_few_are(seed: int) -> None:
    numbers, pool = random.Random(seed), BlockPool(40_000, BLOCK_SIZE)
    feeds = [make_feed(pool, numbers.choice(CACHED), numbers.choice([1, 1, 3, 40])) for _ in range(MANY + 3)]
    tiling = Tiling(4, chunks=Chunks(HEIGHT, 2 * HEIGHT))
    many = ManyChains(feeds, tiling, block_size=BLOCK_SIZE, spare_block=SPARE)
    few = Layout(feeds, tiling, block_size=BLOCK_SIZE, spare_block=SPARE)
    assert few.chunk_tiles == many.chunk_tiles > 0
    assert few.splits == many.splits
    assert few.tables == many.tables
    for name, section in few.sections().items():
        assert list(many.sections()[name]) == list(section), name


def test_passes_that_have_graphs_and_other_cards_have_no_chunks() -> None:
    pool = BlockPool(8000, BLOCK_SIZE)
    few, many = [make_feed(pool, 5, 60)], [make_feed(pool, 5, 61)]
    buffer = make_buffer(chunk_height=HEIGHT)
    assert buffer.lay_out(few).chunk_tiles == 0
    assert buffer.lay_out(many).chunk_tiles == 4
    assert make_buffer().lay_out(many).chunk_tiles == 0


def test_a_chunk_does_not_make_the_tiles_of_the_others_tall() -> None:
    """Whether they are is decided by the rows that are left."""
    pool = BlockPool(8000, BLOCK_SIZE)
    feeds = [make_feed(pool, 5, 200), make_feed(pool, 5, 1)]
    assert not make_buffer(chunk_height=HEIGHT).lay_out(feeds).tall
    assert make_buffer().lay_out(feeds).tall
