"""Passes with more splits than the workspace holds are attended to slice by slice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.engine.fused.borders import split_of
from outrider.engine.fused.layout import Rows


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows and tiles whose splits the workspace holds at a time."""

    first_row: int
    rows: int
    first_tile: int
    tiles: int


def cut(layout: Rows, entries: int) -> tuple[tuple[Slice, ...], list[int]]:
    """Slices of at most so many `entries`, and where each row's splits begin in the workspace. Tiles stay whole.

    Chunks have no entries, and their tiles, which come first, are in no slice.
    """
    splits = split_of(np.array(layout.positions)) + 1
    rows = np.array(layout.tile_rows)
    ends = rows + np.array(layout.tile_counts)
    chunks = layout.chunk_tiles
    for first, stop in zip(rows[:chunks], ends[:chunks], strict=True):
        splits[first:stop] = 0
    rows, ends = rows[chunks:], ends[chunks:]
    before = np.cumsum(splits) - splits
    starts = before.copy()
    reached = np.maximum.accumulate(ends)
    cuts = np.flatnonzero(reached <= np.append(rows[1:], len(splits)))  # tiles after which a cut divides no row
    filled = (before + splits)[reached[cuts] - 1]
    slices: list[Slice] = []
    row, tile = 0, 0
    while tile < len(rows):
        last = int(np.searchsorted(filled, int(before[row]) + entries, side="right")) - 1
        stop, next_tile = int(reached[cuts[last]]), int(cuts[last]) + 1
        assert last >= 0, "the workspace holds less than a tile"
        assert stop > row, "the workspace holds less than a tile"
        starts[row:stop] = before[row:stop] - before[row]
        slices.append(Slice(row, stop - row, chunks + tile, next_tile - tile))
        row, tile = stop, next_tile
    return tuple(slices), starts.tolist()
