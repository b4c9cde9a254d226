"""How many generations run at once, and how many may wait for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.errors import ResourceExhausted


class Admission:
    """A bounded number of places and a bounded, first-come queue before them."""

    def __init__(self, max_running: int, max_waiting: int, timeout_s: float) -> None:
        """`timeout_s`: longest wait in the queue, in seconds."""
        self._places = asyncio.Semaphore(max_running)
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._empty = asyncio.Event()
        self._empty.set()
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold one place. Raise ResourceExhausted if the queue is full or the wait too long."""
        await self._enter()
        self.running += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.running -= 1
            if self.running == 0:
                self._empty.set()
            self._places.release()

    async def drained(self) -> None:
        """Return when nothing runs."""
        await self._empty.wait()

    async def _enter(self) -> None:
        if self._places.locked() and self.waiting >= self._max_waiting:
            raise ResourceExhausted(f"{self._max_running} generations run and {self.waiting} wait")
        self.waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._places.acquire()
        except TimeoutError:
            raise ResourceExhausted(f"no place among {self._max_running} within {self._timeout_s:g} s") from None
        finally:
            self.waiting -= 1
