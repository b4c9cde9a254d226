"""A test double of the wire: a real gRPC server whose GenerationService follows a script instead of running models.

It exists to test the client's own behaviour (streaming, cancellation, deadlines, errors); nothing in it decodes.
"""

# ruff: noqa: N802 (the methods have gRPC's names)

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from outrider.rpc.status import errors_as_status
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import generation_pb2_grpc, sampling_pb2

Script = Callable[[pb.GenerateRequest, Any], AsyncIterator[pb.GenerateResponse]]
WAIT_S = 60.0


def delta(text: str, *token_ids: int, logprobs: tuple[pb.TokenLogprobs, ...] = ()) -> pb.GenerateResponse:
    return pb.GenerateResponse(delta=pb.Delta(text=text, token_ids=token_ids, logprobs=logprobs))


def finished(reason: int = pb.FINISH_REASON_STOP, **fields: Any) -> pb.GenerateResponse:
    message = pb.Finished(request_id="r1", reason=reason, seed=7, usage=pb.Usage(prompt_tokens=3, completion_tokens=4))
    message.timings.queued.FromMilliseconds(1)
    message.timings.first_token.FromMilliseconds(250)
    message.timings.total.FromMilliseconds(1500)
    message.speculation.rule = sampling_pb2.ACCEPTANCE_RULE_MATCH
    message.speculation.drafter = pb.DRAFTER_NGRAM
    for name, value in fields.items():
        setattr(message, name, value)
    return pb.GenerateResponse(finished=message)


class GenerationDouble(generation_pb2_grpc.GenerationServiceServicer):
    """Answers Generate with `script`, Tokenize with the lengths of words; remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[pb.GenerateRequest] = []
        self.cancelled = threading.Event()
        self.info = pb.GetModelInfoResponse(version="0.1.0")
        self.failures: list[BaseException] = []  # raised by unary calls, one each, before they succeed
        self.unary_calls = 0
        self.remaining_s: float | None = None

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        self.remaining_s = context.time_remaining()
        try:
            async with errors_as_status(context):
                async for response in self.script(request, context):
                    yield response
        except (asyncio.CancelledError, GeneratorExit):  # while it waits, or while a delta is being sent
            self.cancelled.set()
            raise

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:
        return await self._unary(context, lambda: pb.AbortResponse(aborted=request.request_id == "r1"))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        text = request.text or " ".join(message.content for message in request.chat.messages)
        return await self._unary(context, lambda: pb.TokenizeResponse(token_ids=[len(w) for w in text.split()]))

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        return await self._unary(context, lambda: self.info)

    async def _unary(self, context: Any, answer: Callable[[], Any]) -> Any:
        self.unary_calls += 1
        async with errors_as_status(context):
            if self.failures:
                raise self.failures.pop(0)
        return answer()


@contextmanager
def serve(script: Script) -> Iterator[tuple[str, GenerationDouble]]:
    """Run the double on its own thread and event loop; yields its address."""
    double = GenerationDouble(script)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="generation-double")
    thread.start()

    def on_loop(work: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(_as_coroutine(work), loop).result(WAIT_S)

    server, port = on_loop(_start(double))
    try:
        yield f"127.0.0.1:{port}", double
    finally:
        on_loop(server.stop(0))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


async def _as_coroutine(work: Awaitable[Any]) -> Any:
    return await work


async def _start(double: GenerationDouble) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(double, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


# Scripts


async def hello(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
    """Two deltas of several tokens, a tail without a token, the end."""
    yield delta("Hel", 1, 2)
    yield delta("lo wor", 3, 4)
    yield delta("ld")
    yield finished()


async def endless(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
    """One delta, then silence until the client goes."""
    yield delta("a", 1)
    await asyncio.Event().wait()
