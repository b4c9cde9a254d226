"""Where the sums of the attention are cut: at positions that are the same for every session and every pass.

A *split* is a range of positions whose softmax is computed by itself; the splits of a row are then merged in order
(flash decoding: Dao et al. 2023). The first `SHORT_SPLITS` are one `BLOCK` each, so that short contexts are computed
side by side; later ones are longer, so that long contexts leave less to merge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 128
"""Positions that one matrix product takes."""

SHORT_SPLITS = 8
"""So many splits of a block each come first."""

LONG_SPLIT = 512
"""Positions of every later split."""

DEEPEST = 256
"""Most levels of a tree in flight: more than proposals of 127 tokens, and what is drafted ahead of them, can have."""

MOST_NODES = 128
"""Rows of a session's tree that one pass may run."""

TILE_HEIGHT = 16
"""Rows of a tile's matrix products, unless more heads than that share a key."""

TALL_HEIGHT = 32
"""Of a pass with many rows a session: keys are read half as often. In one of few rows too few programs would be left.

A row's bits are the same in both: its sums over positions and over numbers of a key are cut and ordered alike.
"""

TALL_FROM = 128
"""Rows from which on a pass may have tall tiles."""

ALIGNED = 4
"""Integers that take 16 bytes. Kernels are compiled for aligned addresses, and anew for others."""

Ints = NDArray[Any]
"""Integers."""


def split_of(position: Ints) -> Ints:
    """The number of the split in which each position lies."""
    short = SHORT_SPLITS * BLOCK
    return np.where(position < short, position // BLOCK, SHORT_SPLITS + (position - short) // LONG_SPLIT)


def split_at(position: int) -> int:
    """`split_of` for a single position, without an array."""
    short = position - SHORT_SPLITS * BLOCK
    return position // BLOCK if short < 0 else SHORT_SPLITS + short // LONG_SPLIT


def split_end(split: int) -> int:
    """The position after the last one of a split."""
    return min(split + 1, SHORT_SPLITS) * BLOCK + max(split + 1 - SHORT_SPLITS, 0) * LONG_SPLIT


def tile_height(shared_by: int, *, tall: bool = False) -> int:
    """Rows of a tile's matrix products, where each key is shared by so many heads."""
    return max(TALL_HEIGHT if tall else TILE_HEIGHT, 1 << (shared_by - 1).bit_length())


def rows_per_tile(shared_by: int, *, tall: bool = False) -> int:
    """Most positions of one session that a tile holds."""
    return tile_height(shared_by, tall=tall) // shared_by
