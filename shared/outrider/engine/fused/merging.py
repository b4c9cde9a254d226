"""Where the splits of a row's attention come together: in order, in one of two places, with the same bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from outrider.engine.fused.launch import let_next_start, wait


class Workspace:
    """What is known of splits until they are merged: room for so many `entries`, one for a split of a row."""

    def __init__(self, entries: int, heads: int, size: int, device: torch.device) -> None:
        self.sums = torch.empty(entries, heads, size, dtype=torch.float32, device=device)
        self.peaks = torch.empty(entries, heads, dtype=torch.float32, device=device)
        self.totals = torch.empty_like(self.peaks)
        self.arrived = torch.zeros(entries, heads, dtype=torch.int32, device=device)
        """At a row's first entry: how many of its splits are there. 0 whenever no attention runs."""


@triton.jit
def splits_of(last, block: tl.constexpr, short_splits: tl.constexpr, long_split: tl.constexpr):
    """How many splits there are up to position `last`."""
    far = last - short_splits * block
    return tl.where(far < 0, last // block, short_splits + far // long_split) + 1


@triton.jit
def fold(most, total, result, peak, part_total, part):
    """Add a split's peak and total [H] and sums [H, SIZE] to those of the splits before it.

    The multiplications that are fused with additions are said: the compiler may choose otherwise in each kernel.
    """
    highest = tl.maximum(most, peak)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    old, new = tl.exp2(most - base), tl.exp2(peak - base)
    total = tl.fma(total, old, part_total * new)
    result = tl.fma(result, old[:, None], part * new[:, None])
    return highest, total, result


@triton.jit
def merged_splits(
    sums, peaks, totals, entry, head, counts, heads: tl.constexpr, size: tl.constexpr, padded_size: tl.constexpr,
    height: tl.constexpr, together: tl.constexpr,
):  # fmt: skip
    """The attention [H, SIZE] of H rows and heads whose `counts` [H] splits lie from `entry` [H] on.

    Reads past the first-level cache: other multiprocessors wrote what is read. What does not depend on their having
    arrived is not masked by it: a mask that all threads had to be told of would make each load wait for the one before.
    """
    column = tl.arange(0, padded_size)
    inside = column < size
    most = tl.full((height,), float("-inf"), tl.float32)
    total = tl.zeros((height,), tl.float32)
    result = tl.zeros((height, padded_size), tl.float32)
    for start in range(0, tl.max(counts), together):
        for step in tl.static_range(together):
            there = start + step < counts
            source = (entry + start + step) * heads + head
            peak = tl.load(peaks + source, mask=there, other=float("-inf"), cache_modifier=".cg")
            part_total = tl.load(totals + source, mask=there, other=0.0, cache_modifier=".cg")
            part = tl.load(
                sums + source[:, None] * size + column[None, :], mask=there[:, None] & inside[None, :], other=0.0,
                cache_modifier=".cg",
            )  # fmt: skip
            most, total, result = fold(most, total, result, peak, part_total, part)
    return result / total[:, None]


@triton.jit(do_not_specialize=["first_row"])
def merge_apart(
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
    together: tl.constexpr,
    block: tl.constexpr,
    short_splits: tl.constexpr,
    long_split: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program merges a row and head, after all programs of the splits are done."""
    row = first_row + tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    head = tl.program_id(1) + tl.arange(0, 1)
    column = tl.arange(0, padded_size)
    let_next_start(overlap)
    counts = splits_of(tl.load(positions + row), block, short_splits, long_split)
    entry = tl.load(split_starts + row).to(tl.int64)
    wait(overlap)
    result = merged_splits(sums, peaks, totals, entry, head, counts, heads, size, padded_size, 1, together)
    target = output + (row * heads + head)[:, None] * size + column[None, :]
    tl.store(target, result.to(output.dtype.element_ty), mask=(column < size)[None, :])
