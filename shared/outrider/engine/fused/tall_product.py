"""x W^T for more rows than a few, where the arithmetic takes as long as reading the weights, or longer.

As `outrider.engine.fused.product._stream`, with operands that the tensor memory accelerator (Hopper and later) brings,
so that the multiprocessor's own threads keep the tensor cores busy. The sums are the same, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from outrider.engine.fused.launch import overlap_options, wait_for_inputs


@triton.jit(do_not_specialize=["rows"])
def _tall(
    x,  # descriptor of [T, K], blocks of block_rows
    x_more,  # the same in blocks of more_rows, if there are any
    weight,  # descriptor of [N, K]
    output,  # [PARTS / PARTS_EACH, T, N]
    rows,
    columns,
    part_depth,
    block_rows: tl.constexpr,
    more_rows: tl.constexpr,  # a tile's rows beyond block_rows: both are powers of two, together they need not be
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
    parts_each: tl.constexpr,  # a program's: one, or all, which it adds up in order, as readers of parts do
    overlap: tl.constexpr,
):
    # Blocks of rows come first, so that those that read the same weights run side by side.
    row, column, part = tl.program_id(0) * (block_rows + more_rows), tl.program_id(1) * block_columns, tl.program_id(2)
    start = part * parts_each * part_depth
    wait_for_inputs(overlap)
    total = tl.zeros((block_columns, block_rows), tl.float32)
    more = tl.zeros((block_columns, more_rows if more_rows > 0 else 16), tl.float32)
    for each in range(parts_each):
        here = tl.zeros((block_columns, block_rows), tl.float32)
        more_here = tl.zeros((block_columns, more_rows if more_rows > 0 else 16), tl.float32)
        for k in range(start + each * part_depth, start + (each + 1) * part_depth, block_depth):
            weights = weight.load([column, k])
            here = tl.dot(weights, x.load([row, k]).T, here, input_precision="ieee")
            if more_rows > 0:
                more_here = tl.dot(weights, x_more.load([row + block_rows, k]).T, more_here, input_precision="ieee")
        total += here
        more += more_here
    _store(total, output, row, column, part, rows, columns, block_rows, block_columns)
    if more_rows > 0:
        _store(more, output, row + block_rows, column, part, rows, columns, more_rows, block_columns)


@triton.jit
def _store(total, output, row, column, part, rows, columns, block_rows: tl.constexpr, block_columns: tl.constexpr):
    row = row + tl.arange(0, block_rows)
    column = column + tl.arange(0, block_columns)
    target = output + (part * rows + row.to(tl.int64)[None, :]) * columns + column[:, None]
    tl.store(target, total.to(output.dtype.element_ty), mask=(row < rows)[None, :] & (column < columns)[:, None])


@dataclass(frozen=True, slots=True)
class TallTile:
    """What one program computes at a time, and how. It decides nothing about a result."""

    rows: int
    more_rows: int  # beside those
    columns: int
    depth: int
    stages: int
    warps: int
    together: bool = False  # a program adds up all parts of its sums, and writes one


_WHOLE = (
    (96, TallTile(64, 32, 128, 64, 3, 8)),
    (128, TallTile(128, 0, 128, 64, 3, 8)),
    (192, TallTile(128, 64, 128, 64, 5, 8)),
    (256, TallTile(256, 0, 128, 64, 4, 8)),
    (384, TallTile(128, 0, 128, 64, 3, 8)),
    (512, TallTile(128, 0, 128, 64, 5, 8)),
)
"""For up to so many rows, where the sums are not cut."""

_WHOLE_BEYOND = TallTile(256, 0, 128, 64, 4, 8)

_CUT = (
    (96, TallTile(64, 32, 64, 64, 4, 4)),
    (128, TallTile(128, 0, 128, 64, 5, 4)),
    (192, TallTile(128, 64, 64, 64, 3, 4)),
    (256, TallTile(128, 0, 128, 64, 3, 4)),
    (384, TallTile(128, 64, 64, 64, 5, 4, together=True)),
    (512, TallTile(128, 0, 128, 64, 5, 8, together=True)),
    (640, TallTile(128, 64, 128, 64, 4, 8, together=True)),
)
"""The same where they are cut. The more rows there are, the more bytes of parts it would be to write them apart."""

_CROWDED = (
    (96, TallTile(64, 32, 64, 64, 3, 4)),
    (128, TallTile(128, 0, 64, 64, 3, 4)),
    (192, TallTile(128, 64, 64, 64, 3, 4)),
    (256, TallTile(128, 0, 64, 64, 3, 4)),
    (384, TallTile(128, 64, 64, 64, 3, 4, together=True)),
    (512, TallTile(128, 0, 64, 64, 3, 4, together=True)),
)
"""And where the blocks are `crowded`."""

_CUT_BEYOND = TallTile(128, 0, 128, 64, 5, 8, together=True)


MULTIPROCESSORS = 132
"""Of an H100 or H200."""


def crowded(columns: int, parts: int) -> bool:
    """True if blocks of 64 columns are three a multiprocessor: all there, with less for each."""
    return -(-(-(-columns // 64) * parts) // MULTIPROCESSORS) == 3


def tall_tile(rows: int, columns: int, parts: int) -> TallTile:
    """How so many rows are computed; measured by tests/benchmarks/matrix_products.py on an H200."""
    cut = _CROWDED if crowded(columns, parts) else _CUT
    tiles, beyond = (_WHOLE, _WHOLE_BEYOND) if parts == 1 else (cut, _CUT_BEYOND)
    return next((tile for most, tile in tiles if rows <= most), beyond)


def can_be_tall(weight: Tensor) -> bool:
    """True if the device of the weight has what the kernel is made of."""
    return weight.is_cuda and torch.cuda.get_device_capability(weight.device) >= (9, 0)


class TallProduct:
    """The product with one weight [N, K], K a multiple of 64, its sums cut into `parts`."""

    def __init__(self, weight: Tensor, parts: int, tile: TallTile | None = None) -> None:
        """`tile`: the one to use for any number of rows, to measure it."""
        self._weight = weight
        self._parts = parts
        self._tile = tile
        self._described: dict[tuple[int, int], TensorDescriptor] = {}  # the weight, by a block's columns and depth
        self._options: dict[str, Any] = overlap_options(weight.device)

    def __call__(self, x: Tensor, output: Tensor) -> Tensor:
        """x [T, K] -> [parts or 1, T, N], in the memory of `output` [parts, T, N]."""
        rows, depth = x.shape
        columns = len(self._weight)
        tile = self._tile or tall_tile(rows, columns, self._parts)
        parts = 1 if tile.together else self._parts
        output = output[:parts]
        _tall[(triton.cdiv(rows, tile.rows + tile.more_rows), triton.cdiv(columns, tile.columns), parts)](
            _described(x, tile.rows, tile.depth),
            _described(x, tile.more_rows or tile.rows, tile.depth),
            self._weight_in(tile),
            output,
            rows,
            columns,
            depth // self._parts,
            block_rows=tile.rows,
            more_rows=tile.more_rows,
            block_columns=tile.columns,
            block_depth=tile.depth,
            parts_each=self._parts // parts,
            num_stages=tile.stages,
            num_warps=tile.warps,
            **self._options,
        )
        return output

    def _weight_in(self, tile: TallTile) -> TensorDescriptor:
        found = self._described.get((tile.columns, tile.depth))
        if found is None:
            found = self._described[tile.columns, tile.depth] = _described(self._weight, tile.columns, tile.depth)
        return found


def _described(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A contiguous matrix in blocks of so many rows and columns."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns])
