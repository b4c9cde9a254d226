"""How the kernels are launched: one after the other, each told to start while the one before it drains.

With programmatic dependent launch (PDL), a kernel's blocks are set up while its predecessor's last blocks still run.
`wait_for_inputs` is where it then waits for the predecessor's results. Every kernel of the pass calls it, in every
block, before it touches anything a predecessor writes or reads; so what holds for neighbours holds for the whole chain.
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


def overlap_options(device: torch.device) -> dict[str, Any]:
    """Launch arguments of every kernel: overlapped from compute capability 9.0 (Hopper) on."""
    overlapped = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"overlap": True, "launch_pdl": True} if overlapped else {"overlap": False}
