"""The matrix products: x W^T for a few rows, bound by reading W once.

`LibraryProduct` is cuBLAS. `StreamProduct` is a kernel of ours whose blocks begin to fetch their share of the weights
while the kernel before them still runs, and whose sum over K is cut at the same places for every number of rows. On
Hopper it has two more, with the same bits: `outrider.engine.fused.ring_product` for few rows and
`outrider.engine.fused.tall_product` for many. `FastestProduct` takes the one for few rows and the other for many, where
the same bits are not asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from outrider.engine.fused.launch import fetch, overlap_options
from outrider.engine.fused.ring_product import RingProduct, RingTile, ring_tile, usable
from outrider.engine.fused.tall_product import TallProduct, TallTile, can_be_tall, crowded


class Product(Protocol):
    """x W^T of a weight [N, K]."""

    row_bytes: int
    """Memory that the result takes a row."""

    def __call__(self, x: Tensor, memory: Tensor) -> Tensor:
        """x [T, K] -> [parts, T, N], to be summed by whoever reads it; lies in `memory`, a flat buffer of bytes."""
        ...


class LibraryProduct:
    """The library's own."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight.t()
        self.row_bytes = len(weight) * weight.element_size()

    def __call__(self, x: Tensor, memory: Tensor) -> Tensor:
        """See `Product`."""
        output = memory.view(self._weight.dtype)[: len(x) * self._weight.shape[1]].view(len(x), -1)
        torch.mm(x, self._weight, out=output)
        return output[None]


@triton.jit(do_not_specialize=["rows"])  # else a new number of rows could mean to compile it again, in mid-service
def _stream(
    x,  # [T, K]
    weight,  # [N, K]
    output,  # [PARTS, T, N]
    rows,
    columns,
    depth,
    part_depth,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
    ahead: tl.constexpr,  # blocks of the weights asked for before the inputs are there
    overlap: tl.constexpr,
):
    # Blocks of rows come first, so that those that read the same weights run side by side.
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    part = tl.program_id(2)
    offset = tl.arange(0, block_depth)
    start = part * part_depth
    source = weight + tl.minimum(column, columns - 1).to(tl.int64)[:, None] * depth + start
    if overlap:
        gdc_launch_dependents()
        if ahead > 0:
            line = tl.arange(0, block_depth // 64) * 64
            for block in tl.static_range(ahead):
                fetch(source + block * block_depth + line[None, :])
        gdc_wait()
    within = row < rows
    total = tl.zeros((block_columns, block_rows), tl.float32)
    for k in range(0, part_depth, block_depth):
        weights = tl.load(source + k + offset[None, :])
        inputs = tl.load(
            x + row.to(tl.int64)[None, :] * depth + start + k + offset[:, None], mask=within[None, :], other=0.0
        )
        total = tl.dot(weights, inputs, total, input_precision="ieee")
    target = output + (part * rows + row.to(tl.int64)[None, :]) * columns + column[:, None]
    tl.store(target, total.to(output.dtype.element_ty), mask=within[None, :] & (column < columns)[:, None])


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes at a time, and how. It decides nothing about a result: only `parts` cuts sums."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int
    ahead: int = 1


FEW_ROWS = 64
"""Up to so many rows reading the weights takes longer than the arithmetic."""

MANY_COLUMNS = 264
"""From so many blocks of 64 columns on, a product fills the card (132 multiprocessors, twice) without being cut."""


def parts_of(columns: int, depth: int) -> int:
    """Into how many parts the sums over `depth` are cut, for a weight [columns, depth]; the same on every card."""
    if -(-columns // 64) >= MANY_COLUMNS:
        return 1
    return next((n for n in (4, 3, 2) if depth % (n * 64) == 0 and depth // n >= 128), 1)


def tile_for(rows: int, columns: int, depth: int, parts: int) -> Tile:
    """How a product of so many rows is computed; measured by tests/benchmarks/matrix_products.py."""
    deep = 128 if depth // parts % 128 == 0 else 64
    if rows <= 16:
        if parts > 1 and depth // parts > 1024 and deep == 128:
            return Tile(16, 128, deep, 5, 8, ahead=0)
        return Tile(16, 64, deep, 4, 4)
    if rows <= 32:
        return Tile(32, 64, deep, 3 if crowded(columns, parts) else 4, 4)
    if rows <= 64:
        if parts == 1:
            return Tile(64, 128, deep, 4, 4)
        return Tile(64, 64, 64, 4, 4) if crowded(columns, parts) else Tile(64, 64, deep, 3, 4)
    if rows <= 256 and parts > 1 and depth // parts <= 1024:
        return Tile(64, 128, 64, 3, 4)
    if rows <= 128 or parts > 1:
        return Tile(128, 128, 64, 3, 8)
    return Tile(256, 128, 64, 3, 8)


def can_stream(weight: Tensor) -> bool:
    """True if `StreamProduct` is there for the weight."""
    return weight.is_cuda and weight.dtype in (torch.bfloat16, torch.float16) and weight.shape[1] % 64 == 0


class StreamProduct:
    """Our own; a Triton kernel. A row's result does not depend on how many rows there are."""

    def __init__(self, weight: Tensor, tile: Tile | RingTile | TallTile | None = None, *, whole: bool = False) -> None:
        """`tile`: the one to use for any number of rows, to measure it. `whole`: do not cut the sums."""
        columns, depth = weight.shape
        self.parts = 1 if whole else parts_of(columns, depth)
        self._kind = torch.float32 if self.parts > 1 else weight.dtype
        self.row_bytes = columns * self.parts * self._kind.itemsize
        self.weight = weight
        self.tall: TallProduct | None = None
        """For more than `FEW_ROWS` rows, if it is there."""
        if isinstance(tile, TallTile) or (tile is None and can_be_tall(weight)):
            self.tall = TallProduct(weight, self.parts, tile)
        self._ring = RingProduct(weight, self.parts) if can_stream(weight) and usable(weight.device) else None
        self._tile = None if isinstance(tile, TallTile) else tile
        self._options: dict[str, Any] = overlap_options(weight.device)

    def __call__(self, x: Tensor, memory: Tensor) -> Tensor:
        """See `Product`. Parts are float32, and so is what the kernel for many rows has added up of them."""
        rows, depth = x.shape
        columns, parts = len(self.weight), self.parts
        output = memory.view(self._kind)[: parts * rows * columns].view(parts, rows, columns)
        if rows > FEW_ROWS and self.tall is not None:
            return self.tall(x, output)
        tile = self._tile or self._ring_tile(rows, depth) or tile_for(rows, columns, depth, parts)
        if isinstance(tile, RingTile):
            assert self._ring is not None
            self._ring(x, output, tile)
            return output
        _stream[(triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns), parts)](
            x,
            self.weight,
            output,
            rows,
            columns,
            depth,
            depth // parts,
            block_rows=tile.rows,
            block_columns=tile.columns,
            block_depth=tile.depth,
            ahead=tile.ahead,
            num_stages=tile.stages,
            num_warps=tile.warps,
            **self._options,
        )
        return output

    def _ring_tile(self, rows: int, depth: int) -> RingTile | None:
        return None if self._ring is None else ring_tile(rows, len(self.weight), depth, self.parts)


class FastestProduct:
    """One kind for up to `FEW_ROWS` rows, another for more: a row's last bits may depend on how many there are."""

    def __init__(self, few: Product, many: Product) -> None:
        self.few, self.many = few, many
        self.row_bytes = max(few.row_bytes, many.row_bytes)

    def __call__(self, x: Tensor, memory: Tensor) -> Tensor:
        """See `Product`."""
        return (self.few if len(x) <= FEW_ROWS else self.many)(x, memory)


class MakeProduct(Protocol):
    """Chooses the kind of a product."""

    def __call__(self, weight: Tensor, *, whole: bool = False) -> Product:
        """Of `weight` [N, K]. `whole`: its result is to have one part."""
        ...


def exact_product(weight: Tensor, *, whole: bool = False) -> Product:
    """`StreamProduct` where it is there."""
    return StreamProduct(weight, whole=whole) if can_stream(weight) else LibraryProduct(weight)


def fastest_product(weight: Tensor, *, whole: bool = False) -> Product:
    """`FastestProduct` where it is there."""
    library = LibraryProduct(weight)
    return FastestProduct(StreamProduct(weight, whole=whole), library) if can_stream(weight) else library
