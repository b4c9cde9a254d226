"""What rounds are told to have cost: all of the device thread's time while it is busy, and each bit of it once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Span:
    """From one point of a device's work to another: what lies between is not what the host did meanwhile."""

    def __init__(self, device: torch.device) -> None:
        """Of a CPU nothing is known: there the host's time is all there is."""
        event: Any = torch.cuda.Event  # has no types
        self._events: tuple[Any, ...] = ()
        if device.type == "cuda":
            self._events = event(enable_timing=True), event(enable_timing=True)
        self._ended = False

    def begin(self) -> None:
        """What is launched from now on belongs to it."""
        self._ended = False
        if self._events:
            self._events[0].record()

    def end(self) -> None:
        """What is launched from now on does not."""
        self._ended = True
        if self._events:
            self._events[1].record()

    def seconds(self) -> float | None:
        """Wait for the device; None where nothing is known, or it has not ended since it began."""
        if not (self._events and self._ended):
            return None
        begun, ended = self._events
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3


class Laps:
    """The time from where the thread was last free; each lap begins where the one before ended."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock`: seconds from any start."""
        self._clock = clock
        self._began = clock()

    def restart(self) -> None:
        """The thread has waited until now: that time is nobody's."""
        self._began = self._clock()

    def lap(self) -> float:
        """Seconds since the last lap ended."""
        began, self._began = self._began, self._clock()
        return self._began - began
