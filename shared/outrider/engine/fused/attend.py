"""Attention over the paged cache, for rows of many sessions, in which a row's result depends on its own keys alone.

A row at position p sees the keys of the positions 0 to p on its own path: the committed chain, then its ancestors in
flight. Two kernels compute it:

1. Programs of a *tile* and a split. A tile is up to 16 query rows: a few positions of a session times the heads that
   share a key. Splits that begin before the session's tree are shared by the rows of a tile; those that reach into a
   tree that branches have a tile for each row, which gathers the keys along its own path.
2. The merge of each row's splits, in order.

Splits are cut at fixed positions, and a key stands in its split where its position says, not where its node happens to
lie in the cache. So a token gets the same bits decoded alone, verified in a chain or anywhere in a tree, and batched
with others. (A mask of ancestors over the slots in flight would be the same in exact arithmetic only: it would add the
keys of siblings' slots, as zeros, between the others, and so group the sums by where they lie.)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.fused.borders import BLOCK, DEEPEST, LONG_SPLIT, SHORT_SPLITS, tile_height
from outrider.engine.fused.launch import overlap_options, wait_for_inputs
from outrider.engine.fused.plan import Plan
from outrider.engine.kv import LayerKv

LOG2_E = 1.4426950408889634
"""Scores are kept to base 2, for which there is an instruction."""

PROGRAMS = 528
"""About so many programs a launch: four for each multiprocessor of an H100."""

MOST_LANES = 16
"""Most programs that share the splits of a tile and a head."""

STAGES = 2
"""Blocks of keys that are on their way at a time, in a program: others run beside it."""

WARPS = 4
"""Of a program of the splits."""

MERGED = 16
"""Splits that the merge takes at a time."""


@triton.jit
def _block_of(split, short_splits: tl.constexpr, blocks: tl.constexpr):
    """The first block of a split, where later ones have so many `blocks`."""
    return tl.where(split < short_splits, split, short_splits + (split - short_splits) * blocks)


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
    overlap: tl.constexpr,
):
    tile = first_tile + tl.program_id(0)
    kv_head = tl.program_id(1)
    wait_for_inputs(overlap)
    begin, end = tl.load(tile_begins + tile), tl.load(tile_ends + tile)
    each = tl.cdiv(end - begin, tl.num_programs(2))
    begin += tl.program_id(2) * each
    end = tl.minimum(begin + each, end)
    if begin >= end:
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
    at = (row * kv_heads * shared_by + head)[:, None] * size + column[None, :]
    rows = tl.load(query + at, mask=valid[:, None] & inside[None, :], other=0.0)
    # One loop over the blocks of all the program's splits, so that keys are on their way across a split's border.
    start = _block_of(begin, short_splits, long_split // block) * block
    stop = tl.minimum(_block_of(end, short_splits, long_split // block) * block, furthest + 1)
    split = begin
    most = tl.full((height,), float("-inf"), tl.float32)
    total = tl.zeros((height,), tl.float32)
    result = tl.zeros((height, padded_size), tl.float32)
    for block_start in range(start, stop, block):
        position = block_start + tl.arange(0, block)
        seen = position < stop
        level = position - tree_start
        in_tree = seen & (level >= 0)
        index = tl.where(in_tree, tl.load(path + level, mask=in_tree, other=0), position)
        number = tl.load(table + index // block_size, mask=seen, other=0).to(tl.int64)
        source = ((number * block_size + index % block_size) * kv_heads + kv_head)[:, None] * size + column[None, :]
        wanted = seen[:, None] & inside[None, :]
        key = tl.load(keys + source, mask=wanted, other=0.0)
        value = tl.load(values + source, mask=wanted, other=0.0)
        scores = tl.dot(rows, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(position[None, :] <= last[:, None], scores, float("-inf"))
        highest = tl.maximum(most, tl.max(scores, axis=1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(most - base)
        total = total * shrink + tl.sum(weights, axis=1)
        result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None], input_precision="ieee")
        most = highest
        split_start = _block_of(split, short_splits, long_split // block) * block
        following = _block_of(split + 1, short_splits, long_split // block) * block
        if block_start + block >= tl.minimum(following, stop):
            written = valid & (split_start <= last)
            target = (entry + split) * kv_heads * shared_by + head
            tl.store(peaks + target, most, mask=written)
            tl.store(totals + target, total, mask=written)
            tl.store(sums + target[:, None] * size + column[None, :], result, mask=written[:, None] & inside[None, :])
            split += 1
            most = tl.full((height,), float("-inf"), tl.float32)
            total = tl.zeros((height,), tl.float32)
            result = tl.zeros((height, padded_size), tl.float32)


@triton.jit(do_not_specialize=["first_row"])
def _merge_splits(
    positions,
    split_starts,
    sums,
    peaks,
    totals,
    output,  # [T, heads, SIZE]
    first_row,
    heads: tl.constexpr,
    size: tl.constexpr,
    padded_size: tl.constexpr,
    merged: tl.constexpr,
    block: tl.constexpr,
    short_splits: tl.constexpr,
    long_split: tl.constexpr,
    overlap: tl.constexpr,
):
    row = first_row + tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, padded_size)
    inside = column < size
    wait_for_inputs(overlap)
    last = tl.load(positions + row)
    far = last - short_splits * block
    count = tl.where(far < 0, last // block, short_splits + far // long_split) + 1
    first = tl.load(split_starts + row).to(tl.int64)
    most = -float("inf")
    total = 0.0
    result = tl.zeros((padded_size,), tl.float32)
    for start in range(0, count, merged):
        split = start + tl.arange(0, merged)
        there = split < count
        entry = (first + split) * heads + head
        peak = tl.load(peaks + entry, mask=there, other=float("-inf"))
        part = tl.load(sums + entry[:, None] * size + column[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        highest = tl.maximum(most, tl.max(peak))
        old, new = tl.exp2(most - highest), tl.exp2(peak - highest)
        total = total * old + tl.sum(tl.load(totals + entry, mask=there, other=0.0) * new)
        result = result * old + tl.sum(part * new[:, None], axis=0)
        most = highest
    tl.store(output + (row * heads + head) * size + column, (result / total).to(output.dtype.element_ty), mask=inside)


class Workspace:
    """What the splits leave for the merge: room for so many `entries`, one for a split of a row."""

    def __init__(self, entries: int, heads: int, size: int, device: torch.device) -> None:
        self.sums = torch.empty(entries, heads, size, dtype=torch.float32, device=device)
        self.peaks = torch.empty(entries, heads, dtype=torch.float32, device=device)
        self.totals = torch.empty_like(self.peaks)


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
    for part in plan.slices:
        lanes = max(1, min(PROGRAMS // (part.tiles * kv_heads), MOST_LANES))
        _attend_splits[(part.tiles, kv_heads, lanes)](
            query, kv.keys, kv.values, plan.positions, plan.tree_starts, plan.paths, plan.row_tables, plan.tables,
            plan.tile_rows, plan.tile_counts, plan.tile_begins, plan.tile_ends, *memory, scaling * LOG2_E,
            part.first_tile, kv_heads=kv_heads, shared_by=heads // kv_heads, height=tile_height(heads // kv_heads),
            block_size=plan.block_size, path_length=DEEPEST, num_warps=WARPS, num_stages=STAGES, **common,
        )  # fmt: skip
        _merge_splits[(part.rows, heads)](
            plan.positions, *memory, output, part.first_row, heads=heads, merged=MERGED, num_warps=2, **common
        )
