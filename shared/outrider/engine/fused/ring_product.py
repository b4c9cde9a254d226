"""x W^T for a few rows on Hopper: the weights are on their way while the kernels before are still at work.

Between two products a layer has kernels that are bound by latency and leave memory idle. A program of this kernel fills
its slots in shared memory with weights meanwhile, a block or two at a time: all at once, they would stand in the way of
the few bytes that the kernels before it wait for, which then end as much later as these weights came earlier. (The
rule is Little's law: with a block for each of three programs a multiprocessor, memory is already as busy as it can be.)

The sums are those of `outrider.engine.fused.product._stream`, in the same order, by the same instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any

import torch
import triton
from torch import Tensor

from outrider.engine.fused.hopper import can_use
from outrider.engine.fused.launch import overlap_options
from outrider.engine.fused.tall_product import MULTIPROCESSORS, crowded


@dataclass(frozen=True, slots=True)
class RingTile:
    """What one program computes at a time, and how. It decides nothing about a result."""

    rows: int
    columns: int
    depth: int
    slots: int
    lead: int  # slots that are filled with weights before the inputs are there
    pace: int  # so many of those are on their way at a time
    warps: int


_CUT = {16: RingTile(16, 64, 128, 5, 5, 1, 4), 32: RingTile(32, 64, 128, 4, 4, 1, 4)}
"""By the most rows, where sums are cut into parts."""

_CROWDED = {
    16: RingTile(16, 64, 64, 7, 7, 2, 4),
    32: RingTile(32, 64, 128, 3, 3, 1, 4),
    64: RingTile(64, 64, 64, 4, 4, 2, 4),
}
"""The same where the blocks are `outrider.engine.fused.tall_product.crowded`."""

_LONG = {
    16: RingTile(16, 128, 128, 5, 5, 3, 8),
    32: RingTile(32, 128, 128, 5, 5, 5, 8),
    64: RingTile(64, 128, 128, 4, 1, 1, 8),
}
"""And where the parts are long; more than 16 rows only where such blocks, one a multiprocessor, leave few idle."""

_GATED = {16: RingTile(16, 64, 128, 3, 3, 1, 4)}
"""For gate and up together."""


def ring_tile(rows: int, columns: int, depth: int, parts: int) -> RingTile | None:
    """How so many rows, 64 at most, are computed; None if the kernel without a ring is as fast.

    Measured within steps of a model on an H200 (tests/benchmarks/results/ring_product_h200.json).
    """
    part_depth = depth // parts
    if parts == 1 or part_depth % 64:
        return None
    if part_depth <= 1024:
        return _fitted(_CROWDED if crowded(columns, parts) else _CUT, rows, part_depth)
    turns = -(-columns // 128) * parts / MULTIPROCESSORS
    return _fitted(_LONG, rows, part_depth) if rows <= 16 or turns / ceil(turns) >= 0.8 else None


def gated_ring_tile(rows: int, depth: int) -> RingTile | None:
    """The same for gate and up together. `RingTile.columns` are those of the result."""
    return _fitted(_GATED, rows, depth) if depth % 128 == 0 else None


def _fitted(tiles: dict[int, RingTile], rows: int, part_depth: int) -> RingTile | None:
    tile = next((tile for most, tile in tiles.items() if rows <= most), None)
    if tile is None:
        return None
    deep = tile.depth if part_depth % tile.depth == 0 else 64
    slots = min(tile.slots, part_depth // deep)
    return replace(tile, depth=deep, slots=slots, lead=min(tile.lead, slots))


class RingProduct:
    """The product with one weight [N, K], its sums cut into `parts`; or, if `gated`, of gate and up, [2 N, K]."""

    def __init__(self, weight: Tensor, parts: int = 1, *, gated: bool = False) -> None:
        """The weight's device is `usable`."""
        from outrider.engine.fused.ring_kernel import described, ring

        self._kernel, self._describe = ring, described
        self._weight = weight
        self._columns = len(weight) // 2 if gated else len(weight)
        self._parts = parts
        self._gated = gated
        self._described: dict[tuple[int, int], Any] = {}  # the weight, by a block's columns and depth
        self._options: dict[str, Any] = overlap_options(weight.device)

    def __call__(self, x: Tensor, output: Tensor, tile: RingTile) -> None:
        """x [T, K] -> output [parts, T, N], or [T, N] of a gated product."""
        rows, depth = x.shape
        grid = (triton.cdiv(rows, tile.rows), triton.cdiv(self._columns, tile.columns), self._parts)
        self._kernel[grid](
            self._describe(x, tile.rows, tile.depth),
            self._weight_in(tile),
            output,
            rows,
            self._columns,
            depth // self._parts,
            slots=tile.slots,
            lead=tile.lead,
            pace=tile.pace,
            gated=self._gated,
            num_warps=tile.warps,
            **self._options,
        )

    def _weight_in(self, tile: RingTile) -> Any:
        key = (tile.columns, tile.depth)
        found = self._described.get(key)
        if found is None:
            found = self._described[key] = self._describe(self._weight, *key)
        return found


@cache
def usable(device: torch.device) -> bool:
    """True if the kernel is there and computes what it should: tried on a small product, once."""
    return can_use(
        "products that bring weights ahead", device, lambda: "" if _is_right_on(device) else "wrong here, and not used"
    )


def _is_right_on(device: torch.device) -> bool:
    x = torch.linspace(-1, 1, 8 * 128, dtype=torch.bfloat16, device=device).view(8, 128)
    weight = torch.linspace(-1, 1, 64 * 128, dtype=torch.bfloat16, device=device).view(64, 128).flip(1).contiguous()
    output = torch.full((8, 64), float("nan"), device=device)
    RingProduct(weight)(x, output, RingTile(16, 64, 64, 2, 2, 1, 4))
    return torch.allclose(output.double(), x.double() @ weight.double().t(), rtol=1e-3, atol=1e-3)
