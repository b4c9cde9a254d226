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
        self._changed = asyncio.Event()  # there is a value, or the end
        self._room = asyncio.Event()
        self.task = asyncio.create_task(self._fill(), name="rounds")
        self.task.add_done_callback(lambda task: self._changed.set())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Value:
        while not self._values:
            if self.task.done():
                if not self.task.cancelled():
                    self.task.result()
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        value = self._values.popleft()
        self._room.set()
        return value

    async def aclose(self) -> None:
        """End the source; return when it has ended."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _fill(self) -> None:
        async with aclosing(self._source):  # type: ignore[type-var]
            async for value in self._source:
                self._values.append(value)
                self._changed.set()
                while len(self._values) >= self._size:
                    self._room.clear()
                    await self._room.wait()
