"""Kernels for Hopper alone, as their matrix instructions are, and in a language that may change with Triton."""

from __future__ import annotations

from collections.abc import Callable

import torch

from outrider.telemetry.logs import get_logger

log = get_logger(__name__)


def can_use(what: str, device: torch.device, fault: Callable[[], str]) -> bool:
    """True if `device` is such a GPU, and a trial finds no `fault` with the kernel; else the log says what it found.

    Whatever is amiss with such a kernel, there is another one.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        found = fault()
    except Exception as error:
        found = f"not there: {repr(error)[:300]}"
    if found:
        log.warning("%s: %s", what, found)
    return not found
