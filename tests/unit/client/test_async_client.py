"""The asyncio client against a real gRPC server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outrider import errors
from outrider.client import AsyncClient
from outrider.v1 import generation_pb2 as pb
from tests.unit.client.generation_double import WAIT_S, delta, endless, finished, hello, serve


async def reached(event: Any) -> bool:
    return await asyncio.to_thread(event.wait, WAIT_S)


async def test_case_28_the_concatenated_stream_is_the_whole_text() -> None:
    with serve(hello) as (address, _):
        async with AsyncClient(address) as client:
            async with client.stream("hi") as stream:
                chunks = [chunk async for chunk in stream]
            whole = await client.generate("hi")
    assert "".join(chunk.text for chunk in chunks) == stream.result.text == whole.text == "Hello world"
    assert whole.token_ids == (1, 2, 3, 4)


async def test_the_stream_can_be_read_step_by_step() -> None:
    with serve(hello) as (address, _):
        async with AsyncClient(address) as client:
            stream = client.stream("hi")
            assert (await anext(stream)).text == "Hel"
            with pytest.raises(RuntimeError, match="end of the stream"):
                _ = stream.result
            assert (await stream.read()).text == "Hello world"
            with pytest.raises(StopAsyncIteration):
                await anext(stream)


async def test_leaving_the_loop_cancels_the_request_on_the_server() -> None:
    with serve(endless) as (address, double):
        async with AsyncClient(address) as client:
            stream = client.stream("hi")
            async for _ in stream:
                break
            assert await reached(double.cancelled)
            assert stream.text == "a"


async def test_leaving_the_with_block_cancels_the_request_on_the_server() -> None:
    with serve(endless) as (address, double):
        async with AsyncClient(address) as client:
            async with client.stream("hi") as stream:
                await anext(stream)
            assert await reached(double.cancelled)
            with pytest.raises(errors.Cancelled):
                await anext(stream)


async def test_cancelling_the_task_cancels_the_request_and_stays_a_cancellation() -> None:
    with serve(endless) as (address, double):
        async with AsyncClient(address) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.generate("hi")
            assert await reached(double.cancelled)


async def test_a_cancellation_by_the_service_is_an_error_not_a_cancelled_task() -> None:
    async def cancelled(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield delta("a", 1)
        raise errors.Cancelled("drained")

    with serve(cancelled) as (address, double):
        async with AsyncClient(address) as client:
            with pytest.raises(errors.Cancelled):
                await client.generate("hi")
            double.failures = [errors.Cancelled("drained")]
            with pytest.raises(errors.Cancelled):
                await client.tokenize("hi")


async def test_deadlines() -> None:
    with serve(endless) as (address, double):
        async with AsyncClient(address, timeout=0.3) as client:
            with pytest.raises(errors.DeadlineExceeded):
                await client.generate("hi")
            assert await reached(double.cancelled)


async def test_errors_keep_their_type_and_text() -> None:
    async def refuse(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        raise errors.ResourceExhausted("no KV blocks left", 2.5)
        yield finished()

    with serve(refuse) as (address, double):
        async with AsyncClient(address) as client:
            with pytest.raises(errors.ResourceExhausted) as caught:
                await client.generate("hi")
            assert caught.value.retry_after_s == 2.5
            double.failures = [errors.InvalidArgument("text", "", "not empty")]
            with pytest.raises(errors.InvalidArgument, match="text"):
                await client.tokenize("hi")


async def test_unary_calls_and_their_retries() -> None:
    with serve(hello) as (address, double):
        async with AsyncClient(address) as client:
            double.failures = [errors.Unavailable("starting")]
            assert await client.tokenize("ab cde") == (2, 3)
            assert double.unary_calls == 2
            assert await client.abort("r1") is True
            assert (await client.model_info()).version == "0.1.0"


async def test_many_requests_at_once_share_one_client() -> None:
    async def echo(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        for letter in request.text:
            yield delta(letter, ord(letter))
        yield finished()

    with serve(echo) as (address, _):
        async with AsyncClient(address) as client:
            prompts = [f"request {number}" for number in range(50)]
            answers = await asyncio.gather(*(client.generate(prompt) for prompt in prompts))
    assert [answer.text for answer in answers] == prompts


def test_the_client_may_be_made_before_the_loop_runs() -> None:
    async def use(client: AsyncClient) -> str:
        async with client:
            return (await client.generate("hi")).text

    with serve(hello) as (address, _):
        assert asyncio.run(use(AsyncClient(address))) == "Hello world"
