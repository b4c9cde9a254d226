"""The matrix products of the fast path by themselves. Without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from outrider.engine.fused.product import FEW_ROWS, FastestProduct, LibraryProduct, Product, StreamProduct, parts_of
from outrider.engine.fused.tall_product import TallTile, tall_tile
from tests.interpreter import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
COLUMNS, DEPTH = 80, 512


@pytest.fixture(name="weight")
def fixture_weight() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(COLUMNS, DEPTH, generator=generator) / DEPTH**0.5).to(DEVICE, DTYPE)


def apply(product: Product, x: torch.Tensor) -> torch.Tensor:
    """The parts of the result, from memory that held something else."""
    memory = torch.full((len(x) * product.row_bytes,), 0x7F, dtype=torch.uint8, device=DEVICE)
    return product(x, memory)


@pytest.mark.parametrize("rows", [1, 5, FEW_ROWS, FEW_ROWS + 1])
def test_few_rows_go_to_our_kernel_and_many_to_the_library(weight: torch.Tensor, rows: int) -> None:
    x = torch.randn(rows, DEPTH, generator=torch.Generator().manual_seed(rows)).to(DEVICE, DTYPE)
    parts = apply(FastestProduct(StreamProduct(weight), LibraryProduct(weight)), x)
    assert len(parts) == (parts_of(COLUMNS, DEPTH) if rows <= FEW_ROWS else 1)
    expected = x.double() @ weight.double().t()
    tolerance = 1e-5 if INTERPRETED else 2e-2
    torch.testing.assert_close(parts.double().sum(0), expected, atol=tolerance, rtol=tolerance)


def test_a_head_is_not_cut_however_few_its_columns(weight: torch.Tensor) -> None:
    assert parts_of(COLUMNS, DEPTH) > 1
    x = torch.randn(3, DEPTH, generator=torch.Generator().manual_seed(3)).to(DEVICE, DTYPE)
    (whole,) = apply(StreamProduct(weight, whole=True), x)
    tolerance = 1e-5 if INTERPRETED else 2e-2
    torch.testing.assert_close(whole.double(), x.double() @ weight.double().t(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("more", [0, 16])
@pytest.mark.parametrize("rows", [FEW_ROWS + 1, 97])
@pytest.mark.parametrize(("whole", "together"), [(True, False), (False, False), (False, True)])
def test_many_rows_have_the_bits_that_few_have(
    weight: torch.Tensor, rows: int, more: int, whole: bool, together: bool
) -> None:
    """The kernel for many rows; a tile's rows need not be a power of two, nor divide the pass's, nor its columns N.

    Where a program adds the parts up, the bits are those that their reader finds.
    """
    x = torch.randn(rows, DEPTH, generator=torch.Generator().manual_seed(rows)).to(DEVICE, DTYPE)
    if INTERPRETED:  # NumPy's sums depend on a tile's shape, unless nothing is rounded
        weight, x = (weight * 64).round() / 64, (x * 8).round() / 8
    tall = StreamProduct(weight, TallTile(32, more, 64, 64, 2, 4, together), whole=whole)
    found = apply(tall, x).clone()
    parts = [apply(StreamProduct(weight, whole=whole), x[start : start + 30]).clone() for start in range(0, rows, 30)]
    few = torch.cat(parts, dim=1)
    if together:
        assert len(few) > len(found) == 1
        few = sum(few, torch.zeros_like(few[0]))[None]
    assert torch.equal(found, few)


def test_a_tile_for_any_number_of_rows() -> None:
    for parts, columns in ((1, 28672), (4, 6144), (4, 4096)):
        tiles = [tall_tile(rows, columns, parts) for rows in range(FEW_ROWS + 1, 2100)]
        assert all(tile.rows + tile.more_rows >= 96 for tile in tiles)
        assert len(set(tiles)) > 2
