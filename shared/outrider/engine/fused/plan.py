"""What a pass over several sessions is told: one buffer of integers, filled on the host, copied to the device at once.

The kernels read it at fixed places, so a CUDA graph that was recorded for a number of rows serves any pass of up to so
many: rows and tiles beyond the real ones do nothing that is looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from struct import pack_into

import numpy as np
import torch
from torch import Tensor

from outrider.engine.batch import Feed
from outrider.engine.fused.borders import DEEPEST, TALL_FROM, rows_per_tile, split_end, split_of
from outrider.engine.fused.layout import CHAIN, Chunks, Layout, Rows, Section, Tiling
from outrider.engine.fused.many import MANY, ManyChains, block_tables
from outrider.engine.fused.slices import Slice, cut
from outrider.engine.fused.staged import Staged
from outrider.engine.runner import Stem

COMMON_ROWS = 640
"""As many as graphs are recorded for. Passes of more rows are long, and of ever other shapes."""

ALIGNMENT = 32
"""Sections begin at multiples of so many integers: kernels are compiled for aligned addresses."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many rows and tiles a pass has room for, and how many of its rows are wanted as logits."""

    rows: int
    tiles: int
    logit_rows: int
    tall: bool = False  # see `outrider.engine.fused.borders.TALL_HEIGHT`
    chunk_tiles: int = 0  # so many tiles come first that are those of `outrider.engine.fused.chunk_attention`


@dataclass(frozen=True, slots=True)
class Plan:
    """The sections of a device buffer; int32, [T] a row or [N] a tile."""

    shape: Shape
    slices: tuple[Slice, ...]  # what is attended to at a time; together all rows and tiles, but for those of chunks
    block_size: int
    paths: Tensor  # [T or more, DEEPEST] index in the cache of the row's ancestor at each level, itself the last
    ids: Tensor  # [T]
    positions: Tensor  # [T] in the session's text
    slots: Tensor  # [T] where the row's key and value go
    split_starts: Tensor  # [T] where in the workspace the row's splits begin
    tree_starts: Tensor  # [T] position of the tree's first level, or CHAIN
    row_tables: Tensor  # [T] where in `tables` the session's block table begins
    backs: Tensor  # [T] 1 + which of `Drawn.backs` says how far before its place the row is; 0: it is there
    tile_rows: Tensor  # [N] first row
    tile_counts: Tensor  # [N] rows
    tile_begins: Tensor  # [N] first split
    tile_ends: Tensor  # [N] one after the last split; not after the first: an unused tile
    logit_rows: Tensor  # [R]
    tables: Tensor  # block numbers


@dataclass(frozen=True, slots=True)
class _Sections:
    """The sections for a shape: where each lies in the buffer, and what all hold where there are no rows."""

    plan: Plan
    places: Mapping[str, slice]  # of those before the block tables
    tables: int  # where these begin
    nothing: array[int]  # what stands before them


class PlanBuffer:
    """Host and device memory for plans, and the way they are filled."""

    HOST_BUFFERS = 4
    """Passes whose copies may be under way."""

    def __init__(
        self,
        device: torch.device,
        *,
        rows: int,
        table_entries: int,
        split_entries: int,
        block_size: int,
        spare_block: int,
        shared_by: int,
        chunk_height: int = 0,
    ) -> None:
        """Room for passes of so many `rows`.

        `split_entries`: splits that the workspace holds. `spare_block`: a block of no session's, where rows that stand
        for nothing read and write. `shared_by`: heads that share a key. `chunk_height`: positions in a tile of
        `outrider.engine.fused.chunk_attention`; 0 where it is not there.
        """
        self._chunks = Chunks(chunk_height, 2 * chunk_height) if chunk_height else None
        self._split_entries = split_entries
        self.tile_rows = rows_per_tile(shared_by)
        self.tall_rows = rows_per_tile(shared_by, tall=True)
        self._table_entries = table_entries
        self._block_size = block_size
        self._spare = spare_block
        size = sections_size(Shape(rows, 2 * rows, rows)) + table_entries
        self._buffer = Staged(size, device, copies=self.HOST_BUFFERS)
        self._paths = Staged(rows * DEEPEST, device, copies=self.HOST_BUFFERS)
        self._common: dict[Shape, _Sections] = {}

    def plan(self, shape: Shape) -> Plan:
        """The device's sections for `shape`, attended to at once."""
        return self._sections(shape).plan

    def fits(self, feeds: Sequence[Feed]) -> bool:
        """False if the feeds' block tables take more than there is room for. A single feed fits always."""
        if len(feeds) == 1 or sum([len(feed.sequence.table) for feed in feeds]) < self._table_entries:
            return True
        return sum(map(self._blocks, feeds)) < self._table_entries

    def _blocks(self, feed: Feed) -> int:
        """How many blocks of its session the feed looks at or writes to."""
        return -(-(feed.base + len(feed)) // self._block_size)

    def lay_out(self, feeds: Sequence[Feed]) -> Rows:
        """The rows of a pass over `feeds`, in tall tiles if they are many, and more a session than others hold.

        Chunks of prompts have tiles of their own in passes that no graph is recorded for.
        """
        rows, chains = sum([feed.size for feed in feeds]), all(feed.tree.is_chain for feed in feeds)
        chunks = self._chunks if rows > COMMON_ROWS else None
        others = feeds if chunks is None else [feed for feed in feeds if not chunks.has(feed)]
        left = sum([feed.size for feed in others])
        tall = left >= max(TALL_FROM, self.tile_rows * len(others) + 1) and self.tall_rows > self.tile_rows
        tall = tall and chains  # the tiles of a tree that branches have a row each
        height = self.tall_rows if tall else self.tile_rows
        lay_out = ManyChains if chains and rows > len(feeds) >= MANY else Layout
        return lay_out(feeds, Tiling(height, tall, chunks), block_size=self._block_size, spare_block=self._spare)

    def fill(self, layout: Rows, shape: Shape) -> Plan:
        """Write the rows into the sections for `shape`, which must have room for them. The pass over them."""
        assert shape.tall or not layout.tall
        assert shape.chunk_tiles == layout.chunk_tiles
        sections, values, slices = self._sections(shape), layout.sections(), None
        if layout.splits > self._split_entries:
            slices, values["split_starts"] = cut(layout, self._split_entries)
        self._write(sections, values, layout.tables)
        if layout.paths:
            self._write_paths(layout.paths)
        return sections.plan if slices is None else replace(sections.plan, slices=slices)

    def fill_nothing(self, shape: Shape) -> None:
        """Write a pass whose rows all stand for nothing."""
        self._write(self._sections(shape), {}, array("i", (self._spare,)))

    def fits_chains(self, stems: Sequence[Stem], steps: int, sessions: int) -> bool:
        """True if so many steps can be taken in `sessions` equal parts of the workspace."""
        longest = max(stem.length for stem in stems) + steps
        reach = split_end(self._split_entries // sessions - 1)
        return longest <= reach and len(stems) * -(-longest // self._block_size) < self._table_entries

    def fill_chains(self, stems: Sequence[Stem], steps: int, shape: Shape) -> None:
        """Write what `outrider.engine.fused.loop.advance` makes the first step of: each session before its next token.

        Where a session has no room for all steps, what it draws beyond that is nobody's. `shape` has a row and a tile
        for each session. Each gets an equal part of the workspace.
        """
        lengths = np.array([stem.length for stem in stems])
        reached = lengths + steps - 1  # the last token is drawn, but not run
        starts, tables = block_tables([stem.sequence for stem in stems], -(-reached // self._block_size), self._spare)
        each, part = np.arange(shape.rows, dtype=np.int32), self._split_entries // shape.rows
        ends = np.full(shape.rows, int(split_of(np.array(1))) + 1, np.int32)  # of the rows that stand for nothing
        ends[: len(stems)] = split_of(lengths) + 1
        values: dict[str, Section] = {
            "positions": (lengths - 1).astype(np.int32),
            "split_starts": each * np.int32(part),
            "row_tables": starts.astype(np.int32),
            "backs": np.array([stem.back + 1 for stem in stems], np.int32),
            "tile_rows": each,
            "tile_counts": np.ones(shape.rows, np.int32),
            "tile_ends": ends,
            "logit_rows": each,
        }
        self._write(self._sections(shape), values, tables)

    def _write(self, sections: _Sections, values: Mapping[str, Section], tables: array[int]) -> None:
        """Write what the sections begin with, nothing after it, and the block tables; copy them."""
        host = self._buffer.begin()
        host[: sections.tables] = sections.nothing
        for name, value in values.items():
            place, count = sections.places[name], len(value)
            assert place.start + count <= place.stop
            if isinstance(value, list):
                pack_into(f"{count}i", host, place.start * host.itemsize, *value)
            else:
                host[place.start : place.start + count] = value.data
        stop = sections.tables + len(tables)
        host[sections.tables : stop] = tables
        self._buffer.send(stop)

    def _write_paths(self, trees: Sequence[tuple[int, list[list[int]]]]) -> None:
        """Write the paths of trees' rows, given with the first row of each; copy them."""
        host, stop = self._paths.begin(), 0
        for first, paths in trees:
            for row, path in enumerate(paths, first):
                assert len(path) <= DEEPEST
                stop = row * DEEPEST + len(path)
                pack_into(f"{len(path)}i", host, row * DEEPEST * host.itemsize, *path)
        self._paths.send(stop)

    def _sections(self, shape: Shape) -> _Sections:
        found = self._common.get(shape)
        if found is None:
            found = self._made_sections(shape)
            if shape.rows <= COMMON_ROWS:
                self._common[shape] = found
        return found

    def _made_sections(self, shape: Shape) -> _Sections:
        places: dict[str, slice] = {}
        start = 0
        for name, length in _lengths(shape).items():
            places[name] = slice(start, start + length)
            start += _aligned(length)
        nothing = array("i", bytes(4 * start))
        nothing[places["slots"]] = array("i", (self._spare * self._block_size,)) * shape.rows
        nothing[places["tree_starts"]] = array("i", (CHAIN,)) * shape.rows
        device, others = self._buffer.device, shape.tiles - shape.chunk_tiles
        plan = Plan(
            shape, (Slice(0, shape.rows, shape.chunk_tiles, others),) if others else (), self._block_size,
            paths=self._paths.device.view(-1, DEEPEST), tables=device[start:],
            **{name: device[place] for name, place in places.items()},
        )  # fmt: skip
        return _Sections(plan, places, start, nothing)


def _lengths(shape: Shape) -> dict[str, int]:
    """Of the sections before the block tables, which are as long as they are."""
    rows = ("ids", "positions", "slots", "split_starts", "tree_starts", "row_tables", "backs")
    tiles = ("tile_rows", "tile_counts", "tile_begins", "tile_ends")
    return dict.fromkeys(rows, shape.rows) | dict.fromkeys(tiles, shape.tiles) | {"logit_rows": shape.logit_rows}


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def sections_size(shape: Shape) -> int:
    """Integers before the block tables."""
    return sum(map(_aligned, _lengths(shape).values()))
