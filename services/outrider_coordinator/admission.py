"""How many generations run at once, and how many may wait for that; fair to clients, so that none starves another."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.errors import ResourceExhausted
from outrider.telemetry import metrics

_RETRY_S = (1.0, 30.0)
"""Least and longest time after which a refused client is told to try again."""

_NEWEST = 0.1
"""Weight of the newest generation in the mean of how long a place is held."""


class Admission:
    """A bounded number of places, and before them a bounded queue for each client.

    A place goes to the client that holds the fewest, among equals to the one whose turn was longest ago; each client's
    own requests stay in their order. When all queues together are full, the client with the longest one is refused.
    """

    def __init__(self, max_running: int, max_waiting: int, timeout_s: float, *, max_waiting_each: int) -> None:
        """`max_waiting`: of all clients together, `max_waiting_each`: of one. `timeout_s`: longest wait, in seconds."""
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_waiting_each = max_waiting_each
        self._timeout_s = timeout_s
        self._held: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # of those who wait; longest without a turn first
        self._mean_s = 0.0  # for which a place is held
        self._empty = asyncio.Event()
        self._empty.set()
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def place(self, client: str = "") -> AsyncIterator[None]:
        """Hold one place. Raise ResourceExhausted if the queue is full or the wait too long."""
        if self.running < self._max_running:
            self._take(client)
        else:
            await self._wait(client)
        began = time.monotonic()
        try:
            yield
        finally:
            self._mean_s += _NEWEST * (time.monotonic() - began - self._mean_s)
            self._give_back(client)

    async def drained(self) -> None:
        """Return when nothing runs."""
        await self._empty.wait()

    async def _wait(self, client: str) -> None:
        self._make_room(client)
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self.waiting += 1
        metrics.waiting.add(1)
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn
        except TimeoutError:
            if not _is_given(turn):
                message = f"no place among {self._max_running} within {self._timeout_s:g} s"
                raise ResourceExhausted(message, self._retry_s(client)) from None
        except asyncio.CancelledError:
            if _is_given(turn):
                self._give_back(client)
            raise
        finally:
            self._leave(client, turn)

    def _make_room(self, client: str) -> None:
        """Raise ResourceExhausted if one more of this client may not wait; else see that it can."""
        own = len(self._queues.get(client, ()))
        if own >= self._max_waiting_each:
            raise ResourceExhausted(f"{own} requests of this client wait, the most that may", self._retry_s(client))
        if self.waiting < self._max_waiting:
            return
        longest = max(self._queues, key=lambda name: len(self._queues[name]), default=client)
        others = len(self._queues.get(longest, ()))
        message = f"{self._max_running} generations run and {self.waiting} wait"
        if others < own + 2:
            raise ResourceExhausted(message, self._retry_s(client))
        newest = self._queues[longest][-1]
        if not newest.done():
            error = ResourceExhausted(f"{message}, {others} of them of this client", self._retry_s(longest))
            newest.set_exception(error)
        self._leave(longest, newest)

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        """It waits no more; does nothing the second time."""
        queue = self._queues.get(client)
        if queue is None or turn not in queue:
            return
        queue.remove(turn)
        self.waiting -= 1
        metrics.waiting.add(-1)
        if not queue:
            del self._queues[client]

    def _take(self, client: str) -> None:
        self._held[client] += 1
        self.running += 1
        metrics.running.add(1)
        self._empty.clear()

    def _give_back(self, client: str) -> None:
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
        self.running -= 1
        metrics.running.add(-1)
        self._pass_on()
        if self.running == 0:
            self._empty.set()

    def _pass_on(self) -> None:
        """Give the free place to who is next, if anybody waits."""
        while self._queues:
            client = min(self._queues, key=lambda name: self._held[name])
            turn = self._queues[client][0]
            self._leave(client, turn)
            if not turn.done():  # else it has just given up
                if client in self._queues:
                    self._queues[client] = self._queues.pop(client)  # behind those who hold as many
                self._take(client)
                turn.set_result(None)
                return

    def _retry_s(self, client: str) -> float:
        """When a place may be free for this client, as if it had all of them."""
        waiting = len(self._queues.get(client, ())) + 1
        return min(max(_RETRY_S[0], self._mean_s * waiting / self._max_running), _RETRY_S[1])


def _is_given(turn: asyncio.Future[None]) -> bool:
    """Whether the place came, perhaps at the very moment in which its owner gave up."""
    return turn.done() and not turn.cancelled() and turn.exception() is None
