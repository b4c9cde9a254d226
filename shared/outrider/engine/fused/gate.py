"""The gated activation of the MLP."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.fused.launch import overlap_options, wait_for_inputs

BLOCK = 1024


@triton.jit
def silu_times(gate, up, kind: tl.constexpr):
    """SiLU(gate) * up of float32 sums, each step rounded to `kind` as where a kernel of its own computes it."""
    gate, up = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
    activated = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    return (activated * up).to(kind)


@triton.jit
def _gated(
    parts,  # [PARTS, T, 2 * N]: gate, then up
    output,  # [T, N]
    part_stride,
    size,
    part_count: tl.constexpr,
    block: tl.constexpr,
    overlap: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < size
    wait_for_inputs(overlap)
    gate = tl.zeros((block,), tl.float32)
    up = tl.zeros((block,), tl.float32)
    for part in tl.static_range(part_count):
        source = parts + part * part_stride + row * 2 * size + column
        gate += tl.load(source, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(source + size, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * size + column, silu_times(gate, up, output.dtype.element_ty), mask=inside)


def gated(parts: Tensor, output: Tensor) -> None:
    """output [T, N] = SiLU(gate) * up, for `parts` [P, T, 2 N] whose sum holds gate and up side by side."""
    rows, size = output.shape
    _gated[(rows, triton.cdiv(size, BLOCK))](
        parts,
        output,
        parts.stride(0),
        size,
        part_count=parts.shape[0],
        block=BLOCK,
        **overlap_options(output.device),
    )
