"""Lets the rounds of an answer go on while the client still takes what they committed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Generic, Self, TypeVar

Value = TypeVar("Value")


class Buffer(Generic[Value]):
    """What `source` yields, from a task of its own, at most `size` values ahead of the reader.

    A slow reader holds the source up. Cancelling `task` ends the source; what it had yielded is still read. An error of
    the source is raised after its values.
    """

    def __init__(self, source: AsyncIterator[Value], size: int) -> None:
        self._source = source
        self._size = size
        self._values: deque[Value] = deque()
        self._reader: asyncio.Future[None] | None = None  # waits for a value or the end
        self._writer: asyncio.Future[None] | None = None  # waits for room
        self.task = asyncio.create_task(self._fill(), name="rounds")
        self.task.add_done_callback(lambda task: _wake(self._reader))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Value:
        while not self._values:
            if self.task.done():
                if not self.task.cancelled():
                    self.task.result()
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        value = self._values.popleft()
        _wake(self._writer)
        return value

    async def aclose(self) -> None:
        """End the source; return when it has ended."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        async with aclosing(self._source):  # type: ignore[type-var]
            async for value in self._source:
                self._values.append(value)
                # Two turns of the loop later: in those the replicas are told what follows, and they wait for it.
                loop.call_soon(loop.call_soon, _wake, self._reader)
                while len(self._values) >= self._size:
                    self._writer = asyncio.get_running_loop().create_future()
                    await self._writer


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
