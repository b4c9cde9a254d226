"""Recording CUDA graphs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_recording = threading.Lock()
"""Recordings share the state of torch's random numbers: of the device threads of a process one records at a time."""


def recorded(run: Callable[[], Result], pool: Any) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of what `run` launches, and what `run` returned; `pool` is the graphs' memory, None for a new one."""
    with _recording:
        run()  # compiles the kernels, and lets the libraries set themselves up on this thread
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with _nothing_collected(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = run()
        return graph, result


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """No garbage collection meanwhile: a graph that it found, of an engine that is gone, would end the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
