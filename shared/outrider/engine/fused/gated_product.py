"""SiLU(x G^T) * (x U^T) for a few rows: the MLP's two products and its activation, in one kernel or in two."""

from __future__ import annotations

from typing import Any, Protocol

import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.fused.gate import gated, silu_times
from outrider.engine.fused.launch import fetch, let_next_start, overlap_options, wait
from outrider.engine.fused.product import FEW_ROWS, FastestProduct, Product, StreamProduct, Tile, can_stream
from outrider.engine.fused.ring_product import RingProduct, RingTile, gated_ring_tile, usable


class GatedProduct(Protocol):
    """Of a weight [2 N, K]: gate, then up."""

    row_bytes: int
    """Memory that is needed a row."""

    def __call__(self, x: Tensor, memory: Tensor, output: Tensor) -> None:
        """x [T, K] -> output [T, N]. `memory`: a flat buffer of bytes, to be used on the way."""
        ...


class SeparateGate:
    """A product of any kind, and the activation in a kernel of its own."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self.row_bytes = product.row_bytes

    def __call__(self, x: Tensor, memory: Tensor, output: Tensor) -> None:
        """See `GatedProduct`."""
        gated(self._product(x, memory), output)


@triton.jit(do_not_specialize=["rows"])
def _stream_gated(
    x,  # [T, K]
    weight,  # [2 N, K]
    output,  # [T, N]
    rows,
    columns,  # N
    depth,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
    ahead: tl.constexpr,
    overlap: tl.constexpr,
):
    # As `outrider.engine.fused.product._stream`, with two sums that are each what it would have found.
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    offset = tl.arange(0, block_depth)
    to_gate = weight + tl.minimum(column, columns - 1).to(tl.int64)[:, None] * depth
    to_up = to_gate + columns.to(tl.int64) * depth
    let_next_start(overlap)
    if overlap and ahead > 0:
        line = tl.arange(0, block_depth // 64) * 64
        for block in tl.static_range(ahead):
            fetch(to_gate + block * block_depth + line[None, :])
            fetch(to_up + block * block_depth + line[None, :])
    wait(overlap)
    within = row < rows
    gate = tl.zeros((block_columns, block_rows), tl.float32)
    up = tl.zeros((block_columns, block_rows), tl.float32)
    for k in range(0, depth, block_depth):
        gates = tl.load(to_gate + k + offset[None, :])
        ups = tl.load(to_up + k + offset[None, :])
        inputs = tl.load(x + row.to(tl.int64)[None, :] * depth + k + offset[:, None], mask=within[None, :], other=0.0)
        gate = tl.dot(gates, inputs, gate, input_precision="ieee")
        up = tl.dot(ups, inputs, up, input_precision="ieee")
    target = output + row.to(tl.int64)[None, :] * columns + column[:, None]
    result = silu_times(gate, up, output.dtype.element_ty)
    tl.store(target, result, mask=within[None, :] & (column < columns)[:, None])


def gated_tile(rows: int, depth: int) -> Tile:
    """How so many rows are computed. `Tile.columns` are those of the result: a program reads twice as many weights."""
    deep = 128 if depth % 128 == 0 else 64
    if rows <= 64:
        return Tile(16 if rows <= 16 else 32 if rows <= 32 else 64, 64, deep, 4, 4)
    return Tile(128, 128, 64, 4, 8)


class StreamGated:
    """Both in a kernel of ours, with the same bits as `SeparateGate` of a `StreamProduct` that has one part."""

    row_bytes = 0

    def __init__(self, weight: Tensor, tile: Tile | RingTile | None = None) -> None:
        """`tile`: the one to use for any number of rows, to measure it."""
        self._weight = weight
        self._ring = RingProduct(weight, gated=True) if can_stream(weight) and usable(weight.device) else None
        self._tile = tile
        self._options: dict[str, Any] = overlap_options(weight.device)

    def __call__(self, x: Tensor, memory: Tensor, output: Tensor) -> None:
        """See `GatedProduct`."""
        rows, depth = x.shape
        columns = len(self._weight) // 2
        ring = None if self._ring is None else gated_ring_tile(rows, depth)
        tile = self._tile or ring or gated_tile(rows, depth)
        if isinstance(tile, RingTile):
            assert self._ring is not None
            self._ring(x, output, tile)
            return
        _stream_gated[(triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns))](
            x,
            self._weight,
            output,
            rows,
            columns,
            depth,
            block_rows=tile.rows,
            block_columns=tile.columns,
            block_depth=tile.depth,
            ahead=tile.ahead,
            num_stages=tile.stages,
            num_warps=tile.warps,
            **self._options,
        )


class GatedByRows:
    """One kind for up to `FEW_ROWS` rows, another for more."""

    def __init__(self, few: GatedProduct, many: GatedProduct) -> None:
        self._few, self._many = few, many
        self.row_bytes = max(few.row_bytes, many.row_bytes)

    def __call__(self, x: Tensor, memory: Tensor, output: Tensor) -> None:
        """See `GatedProduct`."""
        (self._few if len(x) <= FEW_ROWS else self._many)(x, memory, output)


def with_gate(product: Product) -> GatedProduct:
    """One kernel where the product is ours and its sums are whole, else the activation follows in another.

    For many rows the product alone is the faster one (`outrider.engine.fused.tall_product`); the bits are the same.
    """
    if isinstance(product, FastestProduct):
        return GatedByRows(with_gate(product.few), with_gate(product.many))
    if isinstance(product, StreamProduct) and product.parts == 1:
        together = StreamGated(product.weight)
        return GatedByRows(together, SeparateGate(product)) if product.tall else together
    return SeparateGate(product)
