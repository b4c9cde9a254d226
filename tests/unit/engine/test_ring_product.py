"""Products whose weights come before their inputs: the same bits as without. The kernel itself needs a Hopper GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from outrider.engine.fused import product as products
from outrider.engine.fused import ring_product
from outrider.engine.fused.gated_product import StreamGated, gated_tile
from outrider.engine.fused.product import StreamProduct, parts_of, tile_for
from outrider.engine.fused.ring_product import RingTile, gated_ring_tile, ring_tile, usable

WEIGHTS = [(6144, 4096), (4096, 4096), (4096, 14336), (960, 576), (576, 1536), (1536, 8960), (2560, 2048), (80, 512)]
"""[N, K] of several models, and one that no block divides."""

HOPPER_KIB = 227
"""Shared memory a program may have."""


def tiles() -> set[tuple[RingTile, bool]]:
    """All that are used for these weights, and whether they are of gated products."""
    found: set[tuple[RingTile, bool]] = set()
    for columns, depth in WEIGHTS:
        for rows in range(1, products.FEW_ROWS + 1):
            found.add((ring_tile(rows, columns, depth, parts_of(columns, depth)), False))  # type: ignore[arg-type]
            found.add((gated_ring_tile(rows, depth), True))  # type: ignore[arg-type]
    return {(tile, gated) for tile, gated in found if tile is not None}


def test_slots_are_no_more_than_there_are_blocks() -> None:
    """Else a program would ask for weights that are not its own, and end before they are there."""
    for columns, depth in WEIGHTS:
        parts = parts_of(columns, depth)
        for rows in range(1, products.FEW_ROWS + 1):
            for tile, part in (
                (ring_tile(rows, columns, depth, parts), depth // parts),
                (gated_ring_tile(rows, depth), depth),
            ):
                if tile is not None:
                    assert tile.rows >= rows
                    assert part % tile.depth == 0
                    assert 1 <= tile.pace <= tile.lead <= tile.slots <= part // tile.depth


def test_tiles_of_many_models_fit_into_a_multiprocessor() -> None:
    found = tiles()
    assert {tile.rows for tile, gated in found if not gated} == {16, 32, 64}
    for tile, gated in found:
        bytes_ = tile.slots * tile.depth * 2 * (tile.columns * (2 if gated else 1) + tile.rows)
        assert bytes_ <= (HOPPER_KIB - 1) * 1024


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16

from outrider.engine.fused.ring_kernel import ring
from tests.unit.engine.test_ring_product import HOPPER_KIB, tiles


def block(rows, columns):
    layout = NVMMASharedLayout.get_default_for([rows, columns], bfloat16)
    return f"tensordesc<bf16[{rows}, {columns}],{layout!r}>"


for tile, gated in tiles():
    constants = {"slots": tile.slots, "lead": tile.lead, "pace": tile.pace, "gated": gated, "overlap": True}
    kinds = dict.fromkeys(ring.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    kinds |= {"x": block(tile.rows, tile.depth), "weight": block(tile.columns, tile.depth)}
    kinds["output"] = "*bf16" if gated else "*fp32"
    source = GluonASTSource(ring, kinds, {(ring.arg_names.index(name),): value for name, value in constants.items()})
    done = compile(source, GPUTarget("cuda", 90, 32), {"num_warps": tile.warps, "launch_pdl": True})
    ptx = done.asm["ptx"]
    assert done.metadata.shared <= HOPPER_KIB * 1024, tile
    assert ptx.index("griddepcontrol.launch_dependents") < ptx.index("cp.async.bulk") < ptx.index("griddepcontrol.wait")
    assert "wgmma.mma_async" in ptx
print("compiled", len(tiles()))
"""


def test_the_kernel_compiles_for_hopper_with_weights_asked_for_before_the_wait() -> None:
    """Needs no GPU. A process of its own, for in this one kernels may be interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["compiled", str(len(tiles()))]


def fails(device: torch.device) -> bool:
    raise NotImplementedError("this Triton has another Gluon")


@pytest.mark.parametrize(
    ("capability", "tried", "expected", "said"),
    [
        ((9, 0), lambda device: True, True, ""),
        ((9, 0), lambda device: False, False, "wrong here"),
        ((9, 0), fails, False, "another Gluon"),
        ((10, 0), fails, False, ""),
        ((8, 0), fails, False, ""),
    ],
)
def test_a_kernel_that_fails_or_is_wrong_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capability: tuple[int, int],
    tried: Callable[[torch.device], bool],
    expected: bool,
    said: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(ring_product, "_is_right_on", tried)
    assert usable.__wrapped__(torch.device("cuda", 0)) is expected
    assert usable.__wrapped__(torch.device("cpu")) is False
    assert len(caplog.messages) == bool(said)
    assert said in caplog.text


@pytest.fixture(name="device")
def fixture_device(hopper: torch.device) -> torch.device:
    assert usable(hopper)
    return hopper


def random(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(rows * columns)
    return torch.randn(rows, columns, generator=generator, device=device).to(torch.bfloat16)


def poisoned(rows: int, row_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.full((rows * row_bytes,), 0x7F, dtype=torch.uint8, device=device)


RUNS = [
    (columns, depth, rows)
    for columns, depth in WEIGHTS
    for rows in (1, 7, 16, 17, 32, 33, 64)
    if ring_tile(rows, columns, depth, parts_of(columns, depth)) is not None
]
"""N, K and rows of products that are computed so."""


@pytest.mark.gpu
@pytest.mark.parametrize(("columns", "depth", "rows"), RUNS)
def test_the_bits_are_those_of_the_kernel_without_a_ring(
    device: torch.device, columns: int, depth: int, rows: int
) -> None:
    weight, x = random(columns, depth, device) / depth**0.5, random(rows, depth, device)
    parts = parts_of(columns, depth)
    ring, plain = StreamProduct(weight), StreamProduct(weight, tile_for(rows, columns, depth, parts))
    for _ in range(20):  # what went wrong in its order would not go wrong each time
        found = ring(x, poisoned(rows, ring.row_bytes, device))
        assert torch.equal(found, plain(x, poisoned(rows, plain.row_bytes, device)))
    torch.testing.assert_close(found.sum(0).double(), x.double() @ weight.double().t(), atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize(("columns", "depth"), [(14336, 4096), (72, 512)])
def test_gated_products_have_the_same_bits_too(device: torch.device, columns: int, depth: int, rows: int) -> None:
    weight, x = random(2 * columns, depth, device) / depth**0.5, random(rows, depth, device)
    assert gated_ring_tile(rows, depth) is not None
    nothing = torch.empty(0, dtype=torch.uint8, device=device)
    for _ in range(20):
        found, expected = (torch.full((rows, columns), float("nan"), dtype=x.dtype, device=device) for _ in range(2))
        StreamGated(weight)(x, nothing, found)
        StreamGated(weight, gated_tile(rows, depth))(x, nothing, expected)
        assert torch.equal(found, expected)
