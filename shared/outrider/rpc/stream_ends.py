"""How a stream is read until it ends, and why it did."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc.aio

from outrider.errors import FailedPrecondition, OutriderError, Unavailable
from outrider.rpc.malformed import Undecodable
from outrider.rpc.status import from_rpc_error


async def until_one_ends(*halves: Coroutine[Any, Any, None]) -> None:
    """Run the halves of a stream side by side; end both when one ends, and raise what it raised."""
    tasks = [asyncio.create_task(half) for half in halves]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, asyncio.CancelledError):
            raise result


async def read_frame(stream: Any) -> Any:
    """The next frame, or EOF. Raise Unavailable for one that is no message: whose replies it had cannot be known."""
    frame = await stream.read()
    if isinstance(frame, Undecodable):
        raise Unavailable(f"it sent a frame of {frame.size} bytes that is no message")
    return frame


async def end_of(stream: Any) -> OutriderError:
    """Why a stream ended."""
    code, details = await stream.code(), await stream.details()
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return FailedPrecondition(details or str(code))
    return Unavailable(f"the stream ended: {code.name if code else code} {details or ''}".rstrip())


def reason(error: BaseException) -> str:
    """An error in words, whoever raised it."""
    return str(from_rpc_error(error)) if isinstance(error, grpc.RpcError) else str(error) or type(error).__name__
