"""The rows of a pass one after the other: what each is, which keys it sees, and which tiles compute it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.engine.batch import Feed
from outrider.engine.fused.borders import split_at, split_end

CHAIN = 1 << 30
"""The tree's first position, for rows that are in no tree."""


Section = list[int] | NDArray[np.int32]
"""What a section of a plan begins with."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Which feeds of a pass are attended to as chunks of prompts, by `outrider.engine.fused.chunk_attention`."""

    height: int  # most positions in a tile
    least: int  # rows that such a feed has at least; not 1

    def has(self, feed: Feed) -> bool:
        """True if `feed` is a chunk: long, at a place that is known, and a chain."""
        return feed.size >= self.least and feed.back < 0 and feed.tree.is_chain


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the rows of a pass are cut into tiles."""

    height: int  # most positions of a session in a tile
    tall: bool = False  # whether that is many
    chunks: Chunks | None = None


class Rows:
    """The rows of some feeds, before it is decided for how many rows there is to be room.

    The sections are what those of `outrider.engine.fused.plan.Plan` with the same names begin with. `tree_starts` and
    `tile_begins` end with the last tree that branches, `backs` with the last feed whose place is not known; the rest of
    them is as where there are no rows.
    """

    def __init__(self, tiling: Tiling) -> None:
        """No rows yet."""
        self.tall = tiling.tall
        self.chunk_tiles = 0  # so many tiles come first that are those of `outrider.engine.fused.chunk_attention`
        self.ids: Section = []
        self.positions: Section = []
        self.slots: Section = []
        self.split_starts: Section = []
        self.tree_starts: Section = []
        self.row_tables: Section = []
        self.backs: Section = []
        self.tile_rows: Section = []
        self.tile_counts: Section = []
        self.tile_begins: Section = []
        self.tile_ends: Section = []
        self.logit_rows: Section = []
        self.tables = array("i")
        self.paths: list[tuple[int, list[list[int]]]] = []  # first row of a tree that branches, and each row's path
        self.splits = 0  # of all rows
        self.most_tiles = 0  # never less than there are, and no more because a session has become longer

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.ids)

    def sections(self) -> dict[str, Section]:
        """What the sections before the block tables begin with, by name."""
        return {
            "ids": self.ids,
            "positions": self.positions,
            "slots": self.slots,
            "split_starts": self.split_starts,
            "tree_starts": self.tree_starts,
            "row_tables": self.row_tables,
            "backs": self.backs,
            "tile_rows": self.tile_rows,
            "tile_counts": self.tile_counts,
            "tile_begins": self.tile_begins,
            "tile_ends": self.tile_ends,
            "logit_rows": self.logit_rows,
        }


class Layout(Rows):
    """Rows added one after the other to plain lists: numpy's calls would take longer for few sessions, and for trees.

    Many sessions that run chains are `outrider.engine.fused.many.ManyChains`.
    """

    ids: list[int]
    positions: list[int]
    slots: list[int]
    split_starts: list[int]
    tree_starts: list[int]
    row_tables: list[int]
    backs: list[int]
    tile_rows: list[int]
    tile_counts: list[int]
    tile_begins: list[int]
    tile_ends: list[int]
    logit_rows: list[int]

    def __init__(self, feeds: Sequence[Feed], tiling: Tiling, *, block_size: int, spare_block: int) -> None:
        """`spare_block`: what the tables begin with."""
        super().__init__(tiling)
        self._block_size = block_size
        self._height = tiling.height
        self._chunks = tiling.chunks
        self.tables = array("i", (spare_block,))
        if tiling.chunks is not None:
            self._add_chunks(feeds, tiling.chunks)
        for feed in feeds:
            if len(feed) == 1 and not feed.grown:
                self._add_single(feed)
            else:
                self._add(feed)
            if feed.back >= 0:
                self.backs.extend((0,) * (len(self.ids) - len(feed) - len(self.backs)))
                self.backs.extend((feed.back + 1,) * len(feed))

    def _add(self, feed: Feed) -> None:
        sequence, tokens, tree, grown = feed.sequence, feed.tokens, feed.tree, feed.grown
        row, chain, nodes = len(self.ids), len(tokens), len(tree.tokens) - grown
        base, count = feed.base, chain + nodes
        self.ids.extend(tokens)
        if nodes:
            self.ids.extend(tree.tokens[grown:])
        if feed.want_logits:
            self.logit_rows.extend(range(row + max(chain - 1, 0), row + count))
        self.row_tables.extend((len(self.tables),) * count)
        table = sequence.table[: -(-(base + count) // self._block_size)]
        self.tables.extend(table)
        self._add_slots(table, base, base + count)
        if self._chunks is not None and self._chunks.has(feed):  # its tiles are there already, and keep their splits
            self.positions.extend(range(base, base + count))
            self.split_starts.extend((self.splits,) * count)
        elif tree.is_chain:
            self._add_chain(row, base, count)
        else:
            if chain:
                self._add_chain(row, base, chain)
            self._add_branches(feed, row + chain, base + chain - grown)

    def _add_single(self, feed: Feed) -> None:
        """What `_add` does, for a session's only row: most passes consist of such."""
        sequence, size = feed.sequence, self._block_size
        row, base = len(self.ids), feed.base
        number, split = base // size, split_at(base)
        self.ids.append(feed.tokens[0] if feed.tokens else feed.tree.tokens[0])
        if feed.want_logits:
            self.logit_rows.append(row)
        self.row_tables.append(len(self.tables))
        self.tables.extend(sequence.table[: number + 1])
        self.slots.append(sequence.table[number] * size + base % size)
        self.positions.append(base)
        self.split_starts.append(self.splits)
        self.splits += split + 1
        self.tile_rows.append(row)
        self.tile_counts.append(1)
        self.tile_ends.append(split + 1)
        self.most_tiles += 1

    def _add_chunks(self, feeds: Sequence[Feed], chunks: Chunks) -> None:
        """The tiles of all chunks, whose rows come where their feeds do."""
        row = 0
        for feed in feeds:
            if chunks.has(feed):
                for start in range(0, feed.size, chunks.height):
                    count = min(chunks.height, feed.size - start)
                    self._begin_tile(row + start, count, split_at(feed.base + start + count - 1) + 1)
            row += feed.size
        self.chunk_tiles = self.most_tiles = len(self.tile_rows)

    def _add_slots(self, table: array[int], start: int, stop: int) -> None:
        """Of the tokens from index `start` to before `stop` of a session."""
        size = self._block_size
        while start < stop:
            place = start % size
            slot = table[start // size] * size + place
            there = min(size - place, stop - start)
            self.slots.extend(range(slot, slot + there))
            start += there

    def _add_chain(self, row: int, base: int, count: int) -> None:
        """Rows from `row` on that see all keys before them, at the positions from `base` on."""
        stop, height = base + count, self._height
        self.positions.extend(range(base, stop))
        start = base
        while start < stop:
            split = split_at(start)
            there = min(split_end(split), stop) - start
            splits = self.splits + there * (split + 1)
            self.split_starts.extend(range(self.splits, splits, split + 1))
            self.splits = splits
            start += there
        self.most_tiles -= -count // height
        while count > height:
            self._begin_tile(row, height, split_at(base + height - 1) + 1)
            row, base, count = row + height, base + height, count - height
        self._begin_tile(row, count, split + 1)

    def _add_branches(self, feed: Feed, row: int, base: int) -> None:
        """Rows from `row` on, one for each new node of a tree that branches and begins at index `base`.

        Each sees its own path alone. The splits before the one in which the tree begins are shared by a tile's rows.
        """
        parents, grown, height, shared = feed.tree.parents, feed.grown, self._height, split_at(base)
        nodes = range(grown, len(parents))
        self.tree_starts.extend((CHAIN,) * (row - len(self.tree_starts)))
        self.tree_starts.extend((base,) * len(nodes))
        self.tile_begins.extend((0,) * (len(self.tile_rows) - len(self.tile_begins)))
        paths: list[list[int]] = []
        for place, node in enumerate(nodes):
            path = _path_above(parents, node, grown, base, paths)
            path.append(base + node)
            paths.append(path)
            position = base - 1 + len(path)
            split = split_at(position)
            self.positions.append(position)
            self.split_starts.append(self.splits)
            self.splits += split + 1
            if shared and place % height == 0:
                self._add_tile(row + place, min(height, len(nodes) - place), 0, shared)
            self._add_tile(row + place, 1, shared, split + 1)
        self.paths.append((row, paths))
        self.most_tiles += len(nodes) + -(-len(nodes) // height)

    def _begin_tile(self, row: int, count: int, end: int) -> None:
        """A tile whose first split is 0, as those after it have it until a tree branches."""
        self.tile_rows.append(row)
        self.tile_counts.append(count)
        self.tile_ends.append(end)

    def _add_tile(self, row: int, count: int, begin: int, end: int) -> None:
        self.tile_rows.append(row)
        self.tile_counts.append(count)
        self.tile_begins.append(begin)
        self.tile_ends.append(end)


def _path_above(parents: Sequence[int], node: int, grown: int, base: int, paths: Sequence[list[int]]) -> list[int]:
    """The indices of a node's ancestors, first levels first. `paths` are those of the nodes from `grown` on."""
    parent = parents[node]
    if parent >= grown:
        return paths[parent - grown][:]
    found: list[int] = []
    while parent >= 0:
        found.append(base + parent)
        parent = parents[parent]
    found.reverse()
    return found
