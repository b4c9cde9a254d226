"""Attention of prompts on Hopper: tiles of many rows of one session, on the tensor cores' own asynchronous products.

The tiles of `outrider.engine.fused.attend` have up to 32 rows, so that the few rows of a verification keep all
multiprocessors busy. A chunk of a prompt has enough rows for tiles of 64 and 128: keys are read a quarter as often, and
the scores of the next block of keys are computed while the weights of this one are. A program has all splits of its
rows and merges them as they are done: nothing of them is written.

A row's bits are those it has in a small tile. Blocks, splits and the order in which products are summed are the same,
and the sum of a block's weights is taken in the order in which the lanes and warps of the other kernel take it. That
order is the compiler's: `outrider.engine.fused.chunk_trial` finds out whether it still holds.
"""

from __future__ import annotations

from torch import Tensor

from outrider.engine.fused.borders import BLOCK, LONG_SPLIT, SHORT_SPLITS
from outrider.engine.fused.launch import overlap_options
from outrider.engine.fused.plan import Plan
from outrider.engine.kv import LayerKv

HEIGHTS = {64: 64, 128: 128}
"""Rows of a tile's products, 16 a warp, by a head's size: those for which registers hold what they sum."""


def attend_to_chunks(query: Tensor, kv: LayerKv, plan: Plan, scale: float, output: Tensor) -> None:
    """Attention of the plan's chunks, query [T, heads, size], over the cache; to their rows of output, alike.

    `scale`: of scores, to base 2.
    """
    from outrider.engine.fused.chunk_kernel import attend_chunk

    heads, size = query.shape[1:]
    kv_heads = kv.keys.shape[1]
    attend_chunk[(plan.shape.chunk_tiles, kv_heads)](
        query, kv.keys, kv.values, plan.positions, plan.row_tables, plan.tables, plan.tile_rows, plan.tile_counts,
        plan.tile_ends, output, scale, kv_heads=kv_heads, shared_by=heads // kv_heads, size=size, height=HEIGHTS[size],
        block_size=plan.block_size, block=BLOCK, short_splits=SHORT_SPLITS, long_split=LONG_SPLIT,
        num_warps=HEIGHTS[size] // 16, enable_fp_fusion=False, **overlap_options(query.device),
    )  # fmt: skip
