"""Attention over the paged cache, for rows of many sessions, in which a row's result depends on its own keys alone.

A row at position p sees the keys of the positions 0 to p on its own path: the committed chain, then its ancestors in
flight. It is computed in two steps:

1. Programs of a *tile* and some splits. A tile is up to 16 query rows (32 where a session has many): a few positions of
   a session times the heads that share a key. Splits that begin before the session's tree are shared by the rows of a
   tile; those that reach into a tree that branches have a tile for each row, which gathers the keys along its own path.
2. The merge of each row's splits, in order (`outrider.engine.fused.merging`): by the program that finished the last of
   them, from its registers if it computed all of them; or by a second kernel.

Splits are cut at fixed positions, and a key stands in its split where its position says, not where its node happens to
lie in the cache. So a token gets the same bits decoded alone, verified in a chain or anywhere in a tree, and batched
with others. Chunks of prompts have a kernel of their own where it is there (`outrider.engine.fused.chunk_attention`),
which gives them the same. (A mask of ancestors over the slots in flight would be the same in exact arithmetic only: it
would add the keys of siblings' slots, as zeros, between the others, and so group the sums by where they lie.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.fused.borders import BLOCK, DEEPEST, LONG_SPLIT, SHORT_SPLITS, tile_height
from outrider.engine.fused.chunk_attention import attend_to_chunks
from outrider.engine.fused.launch import fetch, let_next_start, overlap_options, wait
from outrider.engine.fused.merging import Workspace, fold, merge_apart, merged_splits, splits_of
from outrider.engine.fused.plan import Plan
from outrider.engine.kv import LayerKv

LOG2_E = 1.4426950408889634
"""Scores are kept to base 2, for which there is an instruction."""

PROGRAMS = 132
"""Programs of which each has a multiprocessor of an H100 to itself."""

MOST_LANES = 16
"""Most programs that share the splits of a tile and a head."""

ROOM = 256
"""Bytes of a key up to which a program has room for two blocks of keys and values, one of which is on its way."""

WARPS = 4
"""Of a program of the splits."""

LAST_FROM = 33
"""From so many rows a pass on, the program that comes last to a row merges its splits; else a second kernel does,
unless each program has all splits of its rows."""

TOGETHER = 8
"""Splits that are on their way at a time when they are merged."""


@triton.jit
def _block_of(split, short_splits: tl.constexpr, blocks: tl.constexpr):
    """The first block of a split, where later ones have so many `blocks`."""
    return tl.where(split < short_splits, split, short_splits + (split - short_splits) * blocks)


@triton.jit
def _slots_of(position, stop, table, path, tree_start, block_size: tl.constexpr):
    """Where in the cache the keys of a path's positions are; of those from `stop` on, anywhere."""
    seen = position < stop
    level = position - tree_start
    in_tree = seen & (level >= 0)
    index = tl.where(in_tree, tl.load(path + level, mask=in_tree, other=0), position)
    number = tl.load(table + index // block_size, mask=seen, other=0).to(tl.int64)
    return number * block_size + index % block_size


@triton.jit(do_not_specialize=["first_tile"])
def _attend_splits(
    query,  # [T, KV_HEADS * SHARED_BY, SIZE]
    keys,  # [slots, KV_HEADS, SIZE]
    values,  # [slots, KV_HEADS, SIZE]
    positions,  # [T] int32
    tree_starts,  # [T] int32, position of the tree's first level; CHAIN where there is no tree
    paths,  # [T, PATH] int32, index in the cache of the row's ancestor at each level
    row_tables,  # [T] int32, where in `tables` each row's block table begins
    tables,  # int32
    tile_rows,  # [N] int32, first row of each tile
    tile_counts,  # [N] int32, rows
    tile_begins,  # [N] int32, first split
    tile_ends,  # [N] int32, one after the last split
    split_starts,  # [T] int32, which entry is the row's first split
    sums,  # [entries, heads, SIZE] float32
    peaks,  # [entries, heads] float32, the largest score
    totals,  # [entries, heads] float32
    arrived,  # [entries, heads] int32, see `Workspace`
    output,  # [T, KV_HEADS * SHARED_BY, SIZE]
    scale,
    first_tile,
    kv_heads: tl.constexpr,
    shared_by: tl.constexpr,
    size: tl.constexpr,
    padded_size: tl.constexpr,
    height: tl.constexpr,
    block_size: tl.constexpr,
    path_length: tl.constexpr,
    block: tl.constexpr,
    short_splits: tl.constexpr,
    long_split: tl.constexpr,
    merge: tl.constexpr,  # who comes last to a row merges it
    together: tl.constexpr,
    overlap: tl.constexpr,
):
    heads: tl.constexpr = kv_heads * shared_by
    tile = first_tile + tl.program_id(0)
    kv_head = tl.program_id(1)
    let_next_start(overlap)
    begin, end = tl.load(tile_begins + tile), tl.load(tile_ends + tile)
    each = tl.cdiv(end - begin, tl.num_programs(2))
    begin += tl.program_id(2) * each
    end = tl.minimum(begin + each, end)
    if begin >= end:
        wait(overlap)
        return
    first, count = tl.load(tile_rows + tile), tl.load(tile_counts + tile)
    place = tl.arange(0, height)
    valid = place < count * shared_by
    row = (first + place // shared_by).to(tl.int64)
    head = kv_head * shared_by + place % shared_by
    last = tl.load(positions + row, mask=valid, other=-1)
    furthest = tl.max(last)
    table = tables + tl.load(row_tables + first)
    tree_start = tl.load(tree_starts + first)
    path = paths + first * path_length
    entry = tl.load(split_starts + row, mask=valid, other=0).to(tl.int64)
    column = tl.arange(0, padded_size)
    inside = column < size
    at = (row * heads + head)[:, None] * size + column[None, :]
    # One loop over the blocks of all the program's splits, so that keys are on their way across a split's border.
    start = _block_of(begin, short_splits, long_split // block) * block
    stop = tl.minimum(_block_of(end, short_splits, long_split // block) * block, furthest + 1)
    # A program that has all splits of its rows can hold what they come to, unless its tile is too tall for that.
    hold: tl.constexpr = merge and height <= 32
    spread = (begin > 0) | (stop <= furthest) | (not hold)
    all_most = tl.full((height,), float("-inf"), tl.float32)
    all_total = tl.zeros((height,), tl.float32)
    all_result = tl.zeros((height, padded_size), tl.float32)
    split = begin
    most = tl.full((height,), float("-inf"), tl.float32)
    total = tl.zeros((height,), tl.float32)
    result = tl.zeros((height, padded_size), tl.float32)
    if overlap:
        lines: tl.constexpr = padded_size // 64 if padded_size > 64 else 1
        line = tl.arange(0, lines) * 64
        slot = _slots_of(start + tl.arange(0, block), stop, table, path, tree_start, block_size)
        early = (slot * kv_heads + kv_head)[:, None] * size + line[None, :]
        fetch(keys + early)
        fetch(values + early)
    wait(overlap)
    rows = tl.load(query + at, mask=valid[:, None] & inside[None, :], other=0.0)
    slot = _slots_of(start + tl.arange(0, block), stop, table, path, tree_start, block_size)
    for block_start in range(start, stop, block):
        position = block_start + tl.arange(0, block)
        seen = position < stop
        source = (slot * kv_heads + kv_head)[:, None] * size + column[None, :]
        wanted = seen[:, None] & inside[None, :]
        key = tl.load(keys + source, mask=wanted, other=0.0)
        value = tl.load(values + source, mask=wanted, other=0.0)
        slot = _slots_of(position + block, stop, table, path, tree_start, block_size)  # the next ones, in good time
        scores = tl.dot(rows, tl.trans(key), input_precision="ieee")
        scores = tl.where(position[None, :] <= last[:, None], scores, float("-inf"))
        highest = tl.maximum(most, tl.max(scores, axis=1) * scale)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(tl.fma(scores, scale, -base[:, None]))
        shrink = tl.exp2(most - base)
        total = tl.fma(total, shrink, tl.sum(weights, axis=1))
        result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None], input_precision="ieee")
        most = highest
        split_start = _block_of(split, short_splits, long_split // block) * block
        following = _block_of(split + 1, short_splits, long_split // block) * block
        if block_start + block >= tl.minimum(following, stop):
            if hold:
                all_most, all_total, all_result = fold(all_most, all_total, all_result, most, total, result)
            if spread:
                written = valid & (split_start <= last)
                target = (entry + split) * heads + head
                tl.store(peaks + target, most, mask=written)
                tl.store(totals + target, total, mask=written)
                sum_at = sums + target[:, None] * size + column[None, :]
                tl.store(sum_at, result, mask=written[:, None] & inside[None, :])
            split += 1
            most = tl.full((height,), float("-inf"), tl.float32)
            total = tl.zeros((height,), tl.float32)
            result = tl.zeros((height, padded_size), tl.float32)
    if merge:
        kept = valid
        if spread:
            counts = tl.where(valid, splits_of(last, block, short_splits, long_split), 0)
            own = tl.maximum(tl.minimum(end, counts) - begin, 0)
            counter = arrived + entry * heads + head
            tl.debug_barrier()  # all threads have written their share
            before = tl.atomic_add(counter, own, mask=own > 0, sem="acq_rel", scope="gpu")
            kept = (own > 0) & (before + own == counts)
            tl.debug_barrier()  # no thread reads before those that look whether all is there
            if tl.max(kept.to(tl.int32)) > 0:
                all_result = merged_splits(
                    sums, peaks, totals, entry, head, counts, heads, size, padded_size, height, together
                )
                tl.store(counter, 0, mask=kept)
        else:
            all_result = all_result / all_total[:, None]
        tl.store(output + at, all_result.to(output.dtype.element_ty), mask=kept[:, None] & inside[None, :])


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which programs compute what, and how. It decides nothing about a result."""

    lanes: int
    """Programs that share the splits of a tile and a head."""

    stages: int
    """Blocks of keys and values that are there or on their way at a time, and one."""

    by_last: bool
    """Whether the program that comes last to a row merges its splits."""


def arranged(rows: int, pairs: int, key_bytes: int) -> Arrangement:
    """For a pass of so many rows and as many `pairs` of a tile and a head, with keys of so many bytes.

    Measured by tests/benchmarks/small_kernels.py and engine_step.py on an H200: programs that are alone on their
    multiprocessor bring keys while they compute; where there are more programs, another one computes meanwhile.
    """
    lanes = max(1, min(PROGRAMS // pairs, MOST_LANES))
    alone = lanes * pairs <= PROGRAMS and key_bytes <= ROOM
    return Arrangement(lanes, 3 if alone else 2, rows >= LAST_FROM or lanes == 1)


def attend(query: Tensor, kv: LayerKv, plan: Plan, workspace: Workspace, scaling: float, output: Tensor) -> None:
    """Attention of query [T, heads, size] over the cache as `plan` has it, to output [T, heads, size]."""
    heads, size = query.shape[1:]
    kv_heads = kv.keys.shape[1]
    common: dict[str, Any] = {
        "size": size,
        "padded_size": triton.next_power_of_2(size),
        "block": BLOCK,
        "short_splits": SHORT_SPLITS,
        "long_split": LONG_SPLIT,
        **overlap_options(query.device),
    }
    memory = (plan.split_starts, workspace.sums, workspace.peaks, workspace.totals)
    height = tile_height(heads // kv_heads, tall=plan.shape.tall)
    if plan.shape.chunk_tiles:
        attend_to_chunks(query, kv, plan, scaling * LOG2_E, output)
    for part in plan.slices:
        chosen = arranged(plan.shape.rows, part.tiles * kv_heads, common["padded_size"] * query.itemsize)
        # Products in float32 leave a program no registers to merge in.
        by_last = chosen.by_last and not (query.is_cuda and query.itemsize > 2)
        _attend_splits[(part.tiles, kv_heads, chosen.lanes)](
            query, kv.keys, kv.values, plan.positions, plan.tree_starts, plan.paths, plan.row_tables, plan.tables,
            plan.tile_rows, plan.tile_counts, plan.tile_begins, plan.tile_ends, *memory, workspace.arrived,
            output, scaling * LOG2_E, part.first_tile, kv_heads=kv_heads, shared_by=heads // kv_heads, height=height,
            block_size=plan.block_size, path_length=DEEPEST, merge=by_last, together=TOGETHER, num_warps=WARPS,
            num_stages=chosen.stages, **common,
        )  # fmt: skip
        if not by_last:
            merge_apart[(part.rows, heads)](
                plan.positions, *memory, output, part.first_row, heads=heads, together=TOGETHER, num_warps=2, **common
            )
