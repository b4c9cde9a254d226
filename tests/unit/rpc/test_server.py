"""A server's end: what was begun is finished, and what does not finish in its grace is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc.aio
import pytest

from outrider.rpc.server import Server
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import generation_pb2_grpc as services


class SlowTail(services.GenerationServiceServicer):
    """Its work is done with the first message; the last one takes `tail_s` seconds to leave."""

    def __init__(self, tail_s: float) -> None:
        self._tail_s = tail_s
        self.work_done = asyncio.Event()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateResponse]:  # type: ignore[override]  # noqa: N802
        yield pb.GenerateResponse(delta=pb.Delta(text="first"))
        self.work_done.set()
        await asyncio.sleep(self._tail_s)
        yield pb.GenerateResponse(delta=pb.Delta(text="last"))


async def answer_while_stopping(tail_s: float, *, drained: bool) -> list[str]:
    """The texts a client gets whose answer is under way when the server stops."""
    servicer = SlowTail(tail_s)
    server = Server("test", "127.0.0.1:0")
    register = partial(services.add_GenerationServiceServicer_to_server, servicer)
    server.add("outrider.v1.GenerationService", register)
    address = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        call = services.GenerationServiceStub(channel).Generate(pb.GenerateRequest(), timeout=10)
        texts = [(await call.read()).delta.text]
        drain = servicer.work_done.wait if drained else asyncio.Event().wait
        stopping = asyncio.create_task(server.stop(drain, grace_s=0.05))  # type: ignore[arg-type]
        while (message := await call.read()) is not grpc.aio.EOF:
            texts.append(message.delta.text)
        await stopping
    return texts


async def test_the_last_messages_of_a_drained_call_arrive() -> None:
    assert await answer_while_stopping(0.3, drained=True) == ["first", "last"]


async def test_what_does_not_drain_in_its_grace_is_ended() -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer_while_stopping(5.0, drained=False)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "this test has ended before the call did" in str(caught.value.details())
