"""The MLP's gated product in one kernel is what it is in two. Without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from outrider.engine.fused.gated_product import GatedByRows, GatedProduct, SeparateGate, StreamGated, with_gate
from outrider.engine.fused.product import FEW_ROWS, FastestProduct, LibraryProduct, StreamProduct
from tests.interpreter import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
COLUMNS, DEPTH = 72, 128
"""Of the result, and what is summed over."""


@pytest.fixture(name="weight")
def fixture_weight() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(2 * COLUMNS, DEPTH, generator=generator) / DEPTH**0.5).to(DEVICE, DTYPE)


def rows_of(count: int) -> torch.Tensor:
    return torch.randn(count, DEPTH, generator=torch.Generator().manual_seed(count)).to(DEVICE, DTYPE)


def apply(product: GatedProduct, x: torch.Tensor) -> torch.Tensor:
    """The result, from memory that held something else."""
    memory = torch.full((len(x) * product.row_bytes,), 0x7F, dtype=torch.uint8, device=DEVICE)
    output = torch.full((len(x), COLUMNS), float("nan"), dtype=DTYPE, device=DEVICE)
    product(x, memory, output)
    return output


@pytest.mark.parametrize("rows", [1, 17, 130])
def test_one_kernel_has_the_bits_of_two(weight: torch.Tensor, rows: int) -> None:
    x = rows_of(rows)
    if INTERPRETED:  # NumPy's sums depend on a tile's shape, unless nothing is rounded
        weight, x = (weight * 64).round() / 64, (x * 8).round() / 8
    separate = SeparateGate(StreamProduct(weight, whole=True))
    assert torch.equal(apply(StreamGated(weight), x), apply(separate, x))


@pytest.mark.parametrize("rows", [3, FEW_ROWS + 1])
def test_few_rows_go_to_our_kernel_and_many_to_the_library(weight: torch.Tensor, rows: int) -> None:
    product = with_gate(FastestProduct(StreamProduct(weight, whole=True), LibraryProduct(weight)))
    x = rows_of(rows)
    gate, up = (x.double() @ weight.double().t()).chunk(2, dim=1)
    tolerance = 1e-5 if INTERPRETED else 2e-2
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(apply(product, x).double(), expected, atol=tolerance, rtol=tolerance)


def test_what_is_chosen(weight: torch.Tensor) -> None:
    """One kernel where the sums are whole and ours; the kernel of its own sums up what a product has left in parts."""
    whole = StreamProduct(weight, whole=True)
    assert isinstance(with_gate(whole), GatedByRows if whole.tall else StreamGated)
    cut = StreamProduct(torch.cat([weight, weight], dim=1))
    assert cut.parts > 1
    assert isinstance(with_gate(cut), SeparateGate)
    assert isinstance(with_gate(LibraryProduct(weight)), SeparateGate)
    assert isinstance(with_gate(FastestProduct(StreamProduct(weight, whole=True), cut)), GatedByRows)
