"""What a pass over several sessions is told: one buffer of integers, filled on the host, copied to the device at once.

The kernels read it at fixed places, so a CUDA graph that was recorded for a number of rows serves any pass of up to so
many: rows and tiles beyond the real ones do nothing that is looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from outrider.engine.batch import Feed
from outrider.engine.fused.borders import BLOCK, DEEPEST, LONG_SPLIT, SHORT_SPLITS, Ints, rows_per_tile, split_of
from outrider.engine.fused.placing import CHAIN, place_logit_rows, place_tree, tiles_of
from outrider.engine.sequence import KvSequence

COMMON_ROWS = 256
"""Passes of more rows are long, and of ever other shapes."""

ALIGNMENT = 32
"""Sections begin at multiples of so many integers: kernels are compiled for aligned addresses."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many rows and tiles a pass has room for, and how many of its rows are wanted as logits."""

    rows: int
    tiles: int
    logit_rows: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows and tiles whose splits the workspace holds at a time."""

    first_row: int
    rows: int
    first_tile: int
    tiles: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The sections of a device buffer; int32, [T] a row or [N] a tile."""

    shape: Shape
    slices: tuple[Slice, ...]  # what is attended to at a time; together all rows and tiles
    block_size: int
    paths: Tensor  # [T or more, DEEPEST] index in the cache of the row's ancestor at each level, itself the last
    ids: Tensor  # [T]
    positions: Tensor  # [T] in the session's text
    slots: Tensor  # [T] where the row's key and value go
    split_starts: Tensor  # [T] where in the workspace the row's splits begin
    tree_starts: Tensor  # [T] position of the tree's first level, or CHAIN
    row_tables: Tensor  # [T] where in `tables` the session's block table begins
    tile_rows: Tensor  # [N] first row
    tile_counts: Tensor  # [N] rows
    tile_begins: Tensor  # [N] first split
    tile_ends: Tensor  # [N] one after the last split; not after the first: an unused tile
    logit_rows: Tensor  # [R]
    tables: Tensor  # block numbers


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
    ) -> None:
        """Room for passes of so many `rows`.

        `split_entries`: splits that the workspace holds. `spare_block`: a block of no session's, where rows that stand
        for nothing read and write. `shared_by`: heads that share a key.
        """
        self._split_entries = split_entries
        self.tile_rows = rows_per_tile(shared_by)
        self._table_entries = table_entries
        self._size = sections_size(Shape(rows, 2 * rows, rows)) + table_entries
        self._block_size = block_size
        self._spare = spare_block
        self._device = torch.zeros(self._size, dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(self._size, dtype=torch.int32, pin_memory=pinned) for _ in range(self.HOST_BUFFERS)]
        self._paths = torch.zeros(rows, DEEPEST, dtype=torch.int32, device=device)
        self._host_paths = torch.zeros(rows, DEEPEST, dtype=torch.int32, pin_memory=pinned)
        self._paths_copied: torch.cuda.Event | None = None
        self._cuts: dict[tuple[int, Shape], list[Ints]] = {}  # of the shapes that come again and again
        self._copied: list[torch.cuda.Event | None] = [None] * self.HOST_BUFFERS
        self._turn = 0

    def plan(self, shape: Shape, slices: tuple[Slice, ...] | None = None) -> Plan:
        """The device's sections for `shape`, attended to in `slices` or at once."""
        whole = (Slice(0, shape.rows, 0, shape.tiles),)
        return Plan(shape, slices or whole, self._block_size, self._paths, *_cut(self._device, shape))

    def fits(self, feeds: Sequence[Feed]) -> bool:
        """False if the feeds' block tables take more than there is room for. A single feed fits always."""
        return len(feeds) == 1 or sum(map(self._blocks, feeds)) < self._table_entries

    def _blocks(self, feed: Feed) -> int:
        """How many blocks of its session the feed looks at or writes to."""
        return -(-(len(feed.sequence.cached) + feed.grown + len(feed)) // self._block_size)

    def most_tiles(self, feeds: Sequence[Feed]) -> int:
        """At least as many tiles as the feeds take."""
        return sum(
            -(-len(feed) // self.tile_rows) if feed.tree.is_chain else 1 + len(feed) + len(feed) // self.tile_rows
            for feed in feeds
        )

    def fill(self, feeds: Sequence[Feed], shape: Shape) -> tuple[Slice, ...]:
        """Write the feeds into the sections for `shape`. The slices cover what is there; mostly there is one."""
        self._next_host()
        used, slices = self._write(feeds, shape)
        self._copy(used)
        return slices

    def fill_nothing(self, shape: Shape) -> None:
        """Write a pass whose rows all stand for nothing."""
        self._next_host()
        sections = self._sections(shape)
        for section in sections[:-1]:
            section[:] = 0
        slots, tables = sections[2], sections[-1]
        slots[:] = self._spare * self._block_size
        tables[0] = self._spare
        self._copy(sections_size(shape) + 1)

    def fits_chains(self, sequences: Sequence[KvSequence], steps: int, sessions: int) -> bool:
        """True if so many steps can be taken in `sessions` equal parts of the workspace."""
        longest = max(len(sequence.cached) for sequence in sequences) + steps
        splits = self._split_entries // sessions
        reach = min(splits, SHORT_SPLITS) * BLOCK + max(splits - SHORT_SPLITS, 0) * LONG_SPLIT
        return longest <= reach and len(sequences) * -(-longest // self._block_size) < self._table_entries

    def fill_chains(self, sequences: Sequence[KvSequence], steps: int, shape: Shape) -> None:
        """Write what `outrider.engine.fused.loop.advance` makes the first step of: each session before its next token.

        `shape` has a row and a tile for each session. Each gets an equal part of the workspace.
        """
        count = len(sequences)
        self._next_host()
        sections = self._sections(shape)
        _, positions, _, split_starts, starts, row_tables, *tiles, logit_rows, tables = sections
        used = self._write_tables(
            [sequence.table[: -(-(len(sequence.cached) + steps) // self._block_size)] for sequence in sequences],
            row_tables,
            tables,
            np.arange(count),
        )
        positions[:] = 0
        positions[:count] = [len(sequence.cached) - 1 for sequence in sequences]
        split_starts[:] = np.arange(shape.rows) * (self._split_entries // shape.rows)
        starts[:] = CHAIN
        each = np.arange(shape.rows)
        for section, value in zip(tiles, (each, 1, 0, split_of(positions + 1) + 1), strict=True):
            section[:] = value
        logit_rows[:] = each
        self._copy(sections_size(shape) + used)

    def _next_host(self) -> None:
        self._turn = (self._turn + 1) % self.HOST_BUFFERS
        event = self._copied[self._turn]
        if event is not None:
            event.synchronize()

    def _sections(self, shape: Shape) -> list[Ints]:
        """The host's sections in the order of `Plan`'s fields."""
        key = (self._turn, shape)
        found = self._cuts.get(key)
        if found is None:
            found = [section.numpy() for section in _cut(self._hosts[self._turn], shape)]
            if shape.rows <= COMMON_ROWS:
                self._cuts[key] = found
        return found

    def _copy(self, size: int) -> None:
        host = self._hosts[self._turn]
        self._device[:size].copy_(host[:size], non_blocking=True)
        if self._device.is_cuda:
            event = self._copied[self._turn] or torch.cuda.Event()
            event.record()
            self._copied[self._turn] = event

    def _write_tables(self, found: Sequence[array[int]], row_tables: Ints, tables: Ints, owner: Ints) -> int:
        """The block tables one after the other, after the spare one; `owner` says whose each row is."""
        starts = [0, *accumulate(len(table) for table in found)]
        tables[0] = self._spare
        tables[1 : starts[-1] + 1] = (
            np.concatenate([np.frombuffer(table, np.int32) for table in found]) if found else []
        )
        row_tables[: len(owner)] = np.array(starts[:-1])[owner] + 1
        row_tables[len(owner) :] = 0
        return starts[-1] + 1

    def _slices(self, shape: Shape, splits: Ints, rows: Ints, ends: Ints, split_starts: Ints) -> tuple[Slice, ...]:
        """Cut the rows where the workspace is full, and give each row its place in it.

        `splits` [T] of each row; `rows` and `ends` [N] the first and one after the last row of each tile, by first row.
        """
        before = np.cumsum(splits) - splits
        split_starts[: len(splits)] = before
        split_starts[len(splits) :] = 0
        if int(before[-1] + splits[-1]) <= self._split_entries:
            return (Slice(0, shape.rows, 0, shape.tiles),)
        reached = np.maximum.accumulate(ends)
        cuts = np.flatnonzero(reached <= np.append(rows[1:], len(splits)))  # tiles after which a cut divides no row
        filled = (before + splits)[reached[cuts] - 1]
        slices: list[Slice] = []
        row, tile = 0, 0
        while row < len(splits):
            last = int(np.searchsorted(filled, int(before[row]) + self._split_entries, side="right")) - 1
            stop, next_tile = int(reached[cuts[last]]), int(cuts[last]) + 1
            assert stop > row, "the workspace holds less than a tile"
            split_starts[row:stop] = before[row:stop] - before[row]
            slices.append(Slice(row, stop - row, tile, next_tile - tile))
            row, tile = stop, next_tile
        return tuple(slices)

    def _write_paths(self, branched: Sequence[tuple[Feed, int]], positions: Ints, starts: Ints, total: int) -> None:
        if self._paths_copied is not None:
            self._paths_copied.synchronize()
        for feed, end in branched:
            place_tree(feed, end, positions, starts, self._host_paths.numpy())
        self._paths[:total].copy_(self._host_paths[:total], non_blocking=True)
        if self._paths.is_cuda:
            self._paths_copied = self._paths_copied or torch.cuda.Event()
            self._paths_copied.record()

    def _write(self, feeds: Sequence[Feed], shape: Shape) -> tuple[int, tuple[Slice, ...]]:
        sections = self._sections(shape)
        ids, positions, slots, split_starts, starts, row_tables, *tiles, logit_rows, tables = sections
        counts = np.array([len(feed) for feed in feeds])
        ends = np.cumsum(counts)
        total = int(ends[-1])
        session = np.repeat(np.arange(len(feeds)), counts)
        bases = np.array([len(feed.sequence.cached) + feed.grown for feed in feeds])
        index = bases[session] + np.arange(total) - (ends - counts)[session]
        used = self._write_tables(
            [feed.sequence.table[: self._blocks(feed)] for feed in feeds], row_tables, tables, session
        )
        ids[:total] = list(chain.from_iterable(feed.ids() for feed in feeds))
        ids[total:] = 0
        size = self._block_size
        slots[:total] = tables[row_tables[:total] + index // size] * size + index % size
        slots[total:] = self._spare * size
        positions[:total] = index
        positions[total:] = 0
        starts[:] = CHAIN
        branched = [(feed, int(end)) for feed, end in zip(feeds, ends, strict=True) if not feed.tree.is_chain]
        if branched:
            self._write_paths(branched, positions, starts, total)
        found = tiles_of(feeds, positions, starts, counts, ends, self.tile_rows)
        for section, column in zip(tiles, found, strict=True):
            section[: len(column)] = column
            section[len(column) :] = 0
        place_logit_rows(np.array([feed.logit_rows for feed in feeds]), ends, logit_rows)
        splits = split_of(positions[:total]) + 1
        slices = self._slices(shape, splits, found[0], found[0] + found[1], split_starts)
        return sections_size(shape) + used, slices


def _lengths(shape: Shape) -> list[int]:
    rows, tiles = shape.rows, shape.tiles
    return [*[rows] * 6, *[tiles] * 4, shape.logit_rows]


def sections_size(shape: Shape) -> int:
    """Integers before the block tables."""
    return sum(-(-length // ALIGNMENT) * ALIGNMENT for length in _lengths(shape))


def _cut(buffer: Tensor, shape: Shape) -> list[Tensor]:
    """The sections in the order of `Plan`'s fields."""
    sections: list[Tensor] = []
    start = 0
    for length in _lengths(shape):
        sections.append(buffer[start : start + length])
        start += -(-length // ALIGNMENT) * ALIGNMENT
    return [*sections, buffer[start:]]
