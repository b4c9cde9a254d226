"""Adding a branch to the residual stream and normalising the sum, in one kernel."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.fused.launch import overlap_options, wait_for_inputs


@triton.jit
def _add_norm(
    residual,  # [T, N]
    parts,  # [PARTS, T, N]
    normed,  # [R, N]
    rows,  # [R] int32, which rows of `residual` are normalised; unused without GATHER
    weight,  # [N]
    epsilon,
    part_stride,
    size: tl.constexpr,
    padded: tl.constexpr,
    part_count: tl.constexpr,
    gather: tl.constexpr,
    overlap: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, padded)
    inside = column < size
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    row = tl.load(rows + program).to(tl.int64) if gather else program
    wait_for_inputs(overlap)
    total = tl.load(residual + row * size + column, mask=inside, other=0.0).to(tl.float32)
    if part_count > 0:
        branch = tl.zeros((padded,), tl.float32)
        for part in tl.static_range(part_count):
            branch += tl.load(parts + part * part_stride + row * size + column, mask=inside, other=0.0).to(tl.float32)
        branch = branch.to(residual.dtype.element_ty).to(tl.float32)  # what a layer's output would be rounded to
        total = (total + branch).to(residual.dtype.element_ty)
        if not gather:
            tl.store(residual + row * size + column, total, mask=inside)
        total = total.to(tl.float32)
    length = tl.sqrt(tl.sum(total * total) / size + epsilon)
    result = (total / length).to(normed.dtype.element_ty).to(tl.float32) * scale
    tl.store(normed + program * size + column, result.to(normed.dtype.element_ty), mask=inside)


class AddNorm:
    """residual += sum of parts, then root mean square normalisation (Zhang & Sennrich 2019) with a weight."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon
        self._size = weight.numel()
        self._options: dict[str, Any] = overlap_options(weight.device)

    def __call__(self, residual: Tensor, parts: Tensor | None, normed: Tensor, rows: Tensor | None = None) -> None:
        """Add `parts` [P, T, N] to `residual` [T, N] in place and write what is normalised to `normed` [R, N].

        With `rows` [R], only those rows are looked at and the residual is left as it was: nothing reads it afterwards.
        """
        _add_norm[(len(normed),)](
            residual,
            residual if parts is None else parts,
            normed,
            residual if rows is None else rows,
            self._weight,
            self._epsilon,
            0 if parts is None else parts.stride(0),
            size=self._size,
            padded=triton.next_power_of_2(self._size),
            part_count=0 if parts is None else parts.shape[0],
            gather=rows is not None,
            num_warps=8 if self._size > 1024 else 4,
            **self._options,
        )
