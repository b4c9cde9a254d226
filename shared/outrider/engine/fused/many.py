"""The rows of many sessions that all run chains, computed for all of them at once: as `Layout` has them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from outrider.engine.batch import Feed
from outrider.engine.fused.borders import Ints, split_of
from outrider.engine.fused.layout import Rows, Tiling
from outrider.engine.sequence import KvSequence

MANY = 24
"""Sessions of a few rows from which on numpy's calls, some forty, take less time than lists that grow row by row."""


class ManyChains(Rows):
    """See `outrider.engine.fused.layout.Rows`. The sections are int32."""

    def __init__(self, feeds: Sequence[Feed], tiling: Tiling, *, block_size: int, spare_block: int) -> None:
        """As `Layout`; every feed's tree is a chain."""
        super().__init__(tiling)
        chunks = tiling.chunks
        bases = np.array([feed.base for feed in feeds])
        counts = np.array([feed.size for feed in feeds])
        ends = counts.cumsum()
        firsts = ends - counts
        ids: list[int] = []
        for feed in feeds:
            ids += feed.tokens
            if feed.tree.tokens:
                ids += feed.tree.tokens[feed.grown :]
        self.ids = ids
        positions = _ranges(bases, counts)
        starts, self.tables = block_tables(
            [feed.sequence for feed in feeds], -(-(bases + counts) // block_size), spare_block
        )
        row_tables = starts.repeat(counts)
        blocks = np.frombuffer(self.tables, np.int32)[row_tables + positions // block_size]
        splits = split_of(positions) + 1
        if chunks is not None:
            chunked = np.array([chunks.has(feed) for feed in feeds])
            splits[chunked.repeat(counts)] = 0
        split_ends = splits.cumsum()
        self.splits = int(split_ends[-1])
        self.positions = positions.astype(np.int32)
        self.slots = (blocks * block_size + positions % block_size).astype(np.int32)
        self.split_starts = (split_ends - splits).astype(np.int32)
        self.row_tables = row_tables.astype(np.int32)
        backs = np.array([feed.back + 1 for feed in feeds], np.int32)
        if backs.any():
            self.backs = backs.repeat(counts)
        wanted = np.array([feed.logit_rows for feed in feeds])
        self.logit_rows = _ranges(ends - wanted, wanted).astype(np.int32)
        spans = np.stack((firsts, counts, bases))
        if chunks is not None:
            cut = _cut(spans[:, chunked], chunks.height)
            self.chunk_tiles = cut.shape[1]
            spans = np.concatenate((cut, _cut(spans[:, ~chunked], tiling.height)), axis=1)
        else:
            spans = _cut(spans, tiling.height)
        firsts, counts, bases = spans
        self.most_tiles = len(firsts)
        self.tile_rows = firsts.astype(np.int32)
        self.tile_counts = counts.astype(np.int32)
        self.tile_ends = (split_of(bases + counts - 1) + 1).astype(np.int32)


def _cut(spans: Ints, height: int) -> Ints:
    """Sessions' first rows, numbers of rows and positions, [3, N], cut into tiles of at most `height` rows each."""
    firsts, counts, bases = spans
    tiles = -(-counts // height)
    if tiles.sum() == len(counts):
        return spans
    before = _ranges(np.zeros_like(tiles), tiles) * height  # rows of the same session in earlier tiles
    counts = np.minimum(counts.repeat(tiles) - before, height)
    return np.stack((firsts.repeat(tiles) + before, counts, bases.repeat(tiles) + before))


def block_tables(sequences: Sequence[KvSequence], sizes: Ints, spare_block: int) -> tuple[Ints, array[int]]:
    """Where each session's table begins, after the spare block; and all of them, the first `sizes` blocks of each.

    Where a session has fewer, the spare block stands for the others.
    """
    tables = array("i", (spare_block,))
    for sequence, size in zip(sequences, sizes.tolist(), strict=True):
        tables += sequence.table[:size]
        if size > len(sequence.table):
            tables += array("i", (spare_block,)) * (size - len(sequence.table))
    return sizes.cumsum() - sizes + 1, tables


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """Ranges of `counts` integers from `starts` on, one after the other."""
    ends = counts.cumsum()
    ranges: Ints = np.arange(ends[-1]) + (starts - ends + counts).repeat(counts)
    return ranges
