"""The deltas between the rounds of an answer and its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from outrider_coordinator.buffer import Buffer

SIZE = 4


class Source:
    """Yields 0, 1, ... as fast as it is let, `count` in all, and then raises `error` if there is one."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.yielded = 0
        self.ended = False

    async def values(self) -> AsyncIterator[int]:
        """See the class."""
        try:
            while self.yielded < self.count:
                self.yielded += 1
                yield self.yielded - 1
            if self.error is not None:
                raise self.error
        finally:
            self.ended = True


async def let_run() -> None:
    """Give every task that can go on its turn."""
    for _ in range(3 * SIZE):
        await asyncio.sleep(0)


async def test_everything_comes_in_order() -> None:
    async with aclosing(Buffer(Source(100).values(), SIZE)) as buffer:
        assert [value async for value in buffer] == list(range(100))


async def test_a_slow_reader_holds_the_source_up() -> None:
    source = Source(100)
    async with aclosing(Buffer(source.values(), SIZE)) as buffer:
        await let_run()
        assert source.yielded == SIZE
        assert await anext(buffer) == 0
        await let_run()
        assert source.yielded == SIZE + 1
    assert source.ended


async def test_what_was_yielded_is_read_after_a_cancellation() -> None:
    source = Source(100)
    async with aclosing(Buffer(source.values(), SIZE)) as buffer:
        await let_run()
        buffer.task.cancel()
        assert [value async for value in buffer] == list(range(SIZE))
    assert source.ended


async def test_an_error_comes_after_the_values() -> None:
    async with aclosing(Buffer(Source(2, ValueError("broken")).values(), SIZE)) as buffer:
        assert [await anext(buffer), await anext(buffer)] == [0, 1]
        with pytest.raises(ValueError, match="broken"):
            await anext(buffer)


async def test_what_the_source_does_next_goes_before_the_reader() -> None:
    """A task that it starts after a value, and what that sets off: so the draft is told first, then the client."""
    log: list[str] = []
    sent = asyncio.Event()

    async def write() -> None:
        await sent.wait()
        log.append("written")

    async def send() -> None:
        log.append("sent")
        sent.set()

    async def source() -> AsyncIterator[int]:
        writer = asyncio.create_task(write())
        await asyncio.sleep(0.001)
        yield 0
        await asyncio.create_task(send())
        await writer

    async with aclosing(Buffer(source(), SIZE)) as buffer:
        async for _ in buffer:
            log.append("read")
    assert log == ["sent", "written", "read"]
