"""How the kernels are launched: one after the other, each told to start while the one before it drains.

With programmatic dependent launch (PDL), a kernel's blocks are set up while its predecessor's last blocks still run.
`wait_for_inputs` is where it then waits for the predecessor's results. Every kernel of the pass calls it, in every
block, before it touches anything a predecessor writes or reads; so what holds for neighbours holds for the whole chain.

What was written before the pass began (weights, the plan, tables of the rotary embedding) may be read before that wait:
a pass begins with a kernel that is launched without overlap, the look-up of the embeddings. Such a kernel calls
`let_next_start` first, and `wait` once it has read them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_inputs(overlap: tl.constexpr) -> None:
    """Let the kernel after this one be set up, and wait for the one before it."""
    if overlap:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def let_next_start(overlap: tl.constexpr) -> None:
    """Let the kernel after this one be set up."""
    if overlap:
        gdc_launch_dependents()


@triton.jit
def wait(overlap: tl.constexpr) -> None:
    """Wait for the kernel before this one."""
    if overlap:
        gdc_wait()


@triton.jit
def fetch(address):
    """Ask for the cache line at `address` to be brought into the second-level cache."""
    return tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


def overlap_options(device: torch.device) -> dict[str, Any]:
    """Launch arguments of every kernel: overlapped from compute capability 9.0 (Hopper) on."""
    overlapped = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"overlap": True, "launch_pdl": True} if overlapped else {"overlap": False}
