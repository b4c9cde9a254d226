"""The blocking client against a real gRPC server that follows a script."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outrider import errors
from outrider.client import Client
from outrider.v1 import generation_pb2 as pb
from tests.unit.client.generation_double import WAIT_S, delta, endless, finished, hello, serve


def test_case_28_the_concatenated_stream_is_the_whole_text() -> None:
    with serve(hello) as (address, _), Client(address) as client:
        with client.stream("hi") as stream:
            chunks = list(stream)
        whole = client.generate("hi")
    assert [chunk.text for chunk in chunks] == ["Hel", "lo wor", "ld"]
    assert [chunk.token_ids for chunk in chunks] == [(1, 2), (3, 4), ()]
    assert stream.result.text == whole.text == stream.text == "Hello world"
    assert whole.token_ids == (1, 2, 3, 4)
    assert whole.usage.completion_tokens == 4


def test_the_stream_can_be_read_step_by_step() -> None:
    with serve(hello) as (address, _), Client(address) as client:
        stream = client.stream("hi")
        assert next(stream).text == "Hel"
        with pytest.raises(RuntimeError, match="end of the stream"):
            _ = stream.result
        assert stream.read().text == "Hello world"
        with pytest.raises(StopIteration):
            next(stream)
        assert list(stream) == []


def test_leaving_the_loop_cancels_the_request_on_the_server() -> None:
    with serve(endless) as (address, double), Client(address) as client:
        stream = client.stream("hi")
        for chunk in stream:
            assert chunk.text == "a"
            break
        assert double.cancelled.wait(WAIT_S)
        assert stream.text == "a"
        with pytest.raises(errors.Cancelled):
            next(stream)


def test_leaving_the_with_block_cancels_the_request_on_the_server() -> None:
    with serve(endless) as (address, double), Client(address) as client:
        with client.stream("hi") as stream:
            next(stream)
        assert double.cancelled.wait(WAIT_S)


def test_cancel_from_another_thread_ends_the_wait() -> None:
    with serve(endless) as (address, double), Client(address) as client, client.stream("hi") as stream:
        next(stream)
        canceller = threading.Timer(0.1, stream.cancel)
        canceller.start()
        with pytest.raises(errors.Cancelled):
            next(stream)
        canceller.join()
        assert double.cancelled.wait(WAIT_S)


def test_the_deadline_reaches_the_server_and_ends_the_call() -> None:
    with serve(endless) as (address, double), Client(address) as client:
        with pytest.raises(errors.DeadlineExceeded):
            client.generate("hi", timeout=0.3)
        assert double.remaining_s is not None
        assert 0 < double.remaining_s <= 0.3
        assert double.cancelled.wait(WAIT_S)


def test_every_call_has_a_deadline_even_if_none_is_given() -> None:
    with serve(hello) as (address, double), Client(address) as client:
        client.generate("hi")
    assert double.remaining_s is not None
    assert 590 < double.remaining_s <= 601  # gRPC may round it up on the wire


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_senseless_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(errors.InvalidArgument, match="timeout"):
        Client("127.0.0.1:1", timeout=timeout)
    with Client("127.0.0.1:1") as client, pytest.raises(errors.InvalidArgument, match="timeout"):
        client.generate("hi", timeout=timeout)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidArgument("temperature", -1.0, "from 0 to 100"),
        errors.ResourceExhausted("no KV blocks left", 2.5),
        errors.FailedPrecondition("another vocabulary"),
        errors.NotFound("no such session"),
        errors.Unavailable("no verifier is connected"),
        errors.InternalError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_their_type_and_text(error: errors.OutriderError) -> None:
    async def fail(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield delta("a", 1)
        raise error

    with serve(fail) as (address, double), Client(address) as client:
        with pytest.raises(type(error)) as caught:
            client.generate("hi")
        assert str(caught.value) == str(error)
        assert len(double.requests) == 1, "Generate must never be repeated"


def test_a_service_that_breaks_the_protocol_is_an_internal_error() -> None:
    async def no_end(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield delta("a", 1)

    async def two_ends(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield finished()
        yield finished()

    for script in (no_end, two_ends):
        with serve(script) as (address, _), Client(address) as client, pytest.raises(errors.InternalError):
            client.generate("hi")


def test_logprobs_come_with_their_alternatives() -> None:
    async def scored(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        top = [pb.TopLogprob(token_id=5, logprob=-0.5), pb.TopLogprob(token_id=6, logprob=-1.5)]
        yield delta("a", 5, logprobs=(pb.TokenLogprobs(token_id=5, logprob=-0.5, top=top),))
        yield finished()

    with serve(scored) as (address, _), Client(address) as client:
        (entry,) = client.generate("hi", logprobs=2).logprobs
    assert (entry.token_id, entry.logprob) == (5, -0.5)
    assert [(each.token_id, each.logprob) for each in entry.top] == [(5, -0.5), (6, -1.5)]


def test_unary_calls() -> None:
    with serve(hello) as (address, _), Client(address) as client:
        assert client.tokenize("ab cde") == (2, 3)
        assert client.tokenize(messages=[{"role": "user", "content": "four"}]) == (4,)
        assert client.abort("r1") is True
        assert client.abort("other") is False
        assert client.model_info().version == "0.1.0"


def test_unary_calls_are_repeated_while_the_service_is_unavailable() -> None:
    with serve(hello) as (address, double), Client(address) as client:
        double.failures = [errors.Unavailable("starting"), errors.Unavailable("starting")]
        assert client.tokenize("ab") == (2,)
        assert double.unary_calls == 3


def test_unary_calls_are_not_repeated_after_other_errors() -> None:
    with serve(hello) as (address, double), Client(address) as client:
        double.failures = [errors.InvalidArgument("text", "", "not empty")]
        with pytest.raises(errors.InvalidArgument) as caught:
            client.tokenize("ab")
        assert (caught.value.field, caught.value.limit) == ("text", "not empty")
        assert double.unary_calls == 1


def test_nobody_listening_is_unavailable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with Client(address) as client:
        for call in (lambda: client.generate("hi", timeout=5), lambda: client.model_info(timeout=5)):
            with pytest.raises(errors.Unavailable):
                call()


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serve(hello) as (address, _), Client(address) as client:
        assert client.generate("hi", timeout=10).text == "Hello world"


def test_closing_the_client_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with serve(endless) as (address, double), Client(address) as client:
        next(client.stream("hi"))
        client.stream("abandoned")
        next(client.stream("also abandoned"))
    assert double.requests
    deadline = time.monotonic() + WAIT_S
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert set(threading.enumerate()) <= before


def test_a_coordinator_that_comes_back_is_found_again_soon() -> None:
    """Attempts to connect follow each other within a second; gRPC's own back-off would make the fifth wait for nine."""
    attempts = 0
    with socket.create_server(("127.0.0.1", 0)) as listener, Client(f"127.0.0.1:{listener.getsockname()[1]}") as client:
        listener.settimeout(8.0)
        deadline = time.monotonic() + 8.0
        with ThreadPoolExecutor(1) as pool:
            while attempts < 5 and time.monotonic() < deadline:
                call = pool.submit(client.generate, "hi", timeout=1.0)
                try:
                    listener.accept()[0].close()
                except TimeoutError:
                    break
                attempts += 1
                assert isinstance(call.exception(), errors.OutriderError)
    assert attempts == 5
