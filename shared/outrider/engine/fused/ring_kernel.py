"""The kernel of `outrider.engine.fused.ring_product`, in Gluon: Triton, with every copy and barrier written down.

Gluon is experimental. This module may not be there to be imported, or to be compiled, with another Triton:
`outrider.engine.fused.ring_product.usable` finds out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from outrider.engine.fused.gate import silu_times


@gluon.jit
def _ask_for_weights(
    weight, gates, ups, there, slot, column, columns, k, wanted, gated: gl.constexpr
):  # a block [C, D] to a slot; of a gated product two, [columns] apart
    bytes: gl.constexpr = weight.block_type.nbytes * (2 if gated else 1)
    mbarrier.expect(there.index(slot), bytes, wanted)
    tma.async_copy_global_to_shared(weight, [column, k], there.index(slot), gates.index(slot), wanted)
    if gated:
        tma.async_copy_global_to_shared(weight, [columns + column, k], there.index(slot), ups.index(slot), wanted)


@gluon.jit
def _ask_for_inputs(x, inputs, there, slot, row, k, wanted):  # a block [R, D] to a slot
    mbarrier.expect(there.index(slot), x.block_type.nbytes, wanted)
    tma.async_copy_global_to_shared(x, [row, k], there.index(slot), inputs.index(slot), wanted)


@gluon.jit(do_not_specialize=["rows"])  # else a new number of rows could mean to compile it again, in mid-service
def ring(
    x,  # descriptor of [T, K], blocks [R, D]
    weight,  # descriptor of [N, K], blocks [C, D]; [2 N, K] if gated
    output,  # [PARTS, T, N]
    rows,
    columns,  # N
    part_depth,  # a multiple of D, and slots * D at least
    slots: gl.constexpr,
    lead: gl.constexpr,  # slots that are filled with weights before the inputs are there
    pace: gl.constexpr,  # so many of these are on their way at a time
    gated: gl.constexpr,
    overlap: gl.constexpr,
):
    """A block of the product: see `outrider.engine.fused.ring_product`."""
    height: gl.constexpr = x.block_type.shape[0]
    width: gl.constexpr = weight.block_type.shape[0]
    deep: gl.constexpr = weight.block_type.shape[1]
    # Blocks of rows come first, so that those that read the same weights run side by side.
    row, column, part = gl.program_id(0) * height, gl.program_id(1) * width, gl.program_id(2)
    start = part * part_depth
    gates = gl.allocate_shared_memory(weight.dtype, [slots, width, deep], weight.layout)
    ups = gl.allocate_shared_memory(weight.dtype, [slots if gated else 1, width, deep], weight.layout)
    inputs = gl.allocate_shared_memory(x.dtype, [slots, height, deep], x.layout)
    weights_there = gl.allocate_shared_memory(gl.int64, [slots, 1], mbarrier.MBarrierLayout())
    inputs_there = gl.allocate_shared_memory(gl.int64, [slots, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(slots):
        mbarrier.init(weights_there.index(slot), count=1)
        mbarrier.init(inputs_there.index(slot), count=1)
    fence_async_shared()
    if overlap:
        gdc_launch_dependents()
    for slot in gl.static_range(lead):
        if slot >= pace:
            mbarrier.wait(weights_there.index(slot - pace), 0)
        _ask_for_weights(weight, gates, ups, weights_there, slot, column, columns, start + slot * deep, True, gated)
    if overlap:
        gdc_wait()
    for slot in gl.static_range(slots):
        _ask_for_inputs(x, inputs, inputs_there, slot, row, start + slot * deep, True)
        if slot >= lead:
            _ask_for_weights(weight, gates, ups, weights_there, slot, column, columns, start + slot * deep, True, gated)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, height, 16]
    )
    total = gl.zeros((width, height), gl.float32, layout=layout)
    up = gl.zeros((width, height), gl.float32, layout=layout)
    for k in range(0, part_depth, deep):
        at = k // deep % slots
        turn = k // deep // slots & 1
        mbarrier.wait(weights_there.index(at), turn)
        mbarrier.wait(inputs_there.index(at), turn)
        here = inputs.index(at).permute((1, 0))
        total = warpgroup_mma(gates.index(at), here, total, is_async=True)
        if gated:
            up = warpgroup_mma(ups.index(at), here, up, is_async=True)
            total, up = warpgroup_mma_wait(num_outstanding=0, deps=(total, up))
        else:
            total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
        gl.thread_barrier()  # all warps have read the slot
        following = k + slots * deep
        more = following < part_depth
        _ask_for_weights(weight, gates, ups, weights_there, at, column, columns, start + following, more, gated)
        _ask_for_inputs(x, inputs, inputs_there, at, row, start + following, more)
    kind: gl.constexpr = output.dtype.element_ty
    if gated:
        total = silu_times(total, up, kind)
    rows_here = row + gl.arange(0, height, layout=gl.SliceLayout(0, layout))
    columns_here = column + gl.arange(0, width, layout=gl.SliceLayout(1, layout))
    target = output + (part * rows + rows_here.to(gl.int64)[None, :]) * columns + columns_here[:, None]
    gl.store(target, total.to(kind), mask=(rows_here < rows)[None, :] & (columns_here < columns)[:, None])


_KINDS: dict[torch.dtype, Any] = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def described(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A contiguous matrix in blocks of so many rows and columns, as the tensor cores read them from shared memory."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], _KINDS[matrix.dtype])
    return TensorDescriptor.from_tensor(matrix, [rows, columns], layout)
