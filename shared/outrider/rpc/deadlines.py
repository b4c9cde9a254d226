"""Deadlines of many waits, of which hardly any is ever reached: those that end at about the same time share a timer."""

from __future__ import annotations

import asyncio

GRAIN_S = 0.05
"""A wait is ended at most so many seconds late, and never early."""


class Deadlines:
    """Ends waits when their time is over. A timer of its own for each wait takes several times as long."""

    def __init__(self) -> None:
        self._waits: dict[int, set[asyncio.Future[None]]] = {}  # by the grain of the loop's time in which they end

    def add(self, wait: asyncio.Future[None], timeout_s: float) -> set[asyncio.Future[None]]:
        """Set its result after `timeout_s` seconds, unless it is discarded before from the set that this returns."""
        loop = wait.get_loop()
        grain = int((loop.time() + timeout_s) / GRAIN_S) + 1
        waits = self._waits.get(grain)
        if waits is None:
            waits = self._waits[grain] = set()
            loop.call_at(grain * GRAIN_S, self._end, grain)
        waits.add(wait)
        return waits

    def _end(self, grain: int) -> None:
        for wait in self._waits.pop(grain):
            if not wait.done():
                wait.set_result(None)
