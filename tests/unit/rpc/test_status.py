"""Errors keep their meaning over the wire, and the code says whose fault it is (cases.md 32)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import code_pb2, error_details_pb2

from outrider import errors
from outrider.rpc.status import errors_as_status, from_rpc_error, to_status

ERRORS = [
    (errors.InvalidArgument("top_p", 3.5, "at most 1"), grpc.StatusCode.INVALID_ARGUMENT),
    (errors.ResourceExhausted("no place", 2.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable("no verifier"), grpc.StatusCode.UNAVAILABLE),
    (errors.FailedPrecondition("another vocabulary"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.DeadlineExceeded("too late"), grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.NotFound("no such thing"), grpc.StatusCode.NOT_FOUND),
    (errors.Unauthenticated("no key"), grpc.StatusCode.UNAUTHENTICATED),
    (errors.InternalError("our fault"), grpc.StatusCode.INTERNAL),
    (ZeroDivisionError("a bug"), grpc.StatusCode.INTERNAL),
]


@pytest.fixture
async def address(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A server whose only method fails with the test's error."""

    async def fail(request_bytes: bytes, context: Any) -> bytes:
        async with errors_as_status(context):
            raise request.param
        raise AssertionError

    handler = grpc.unary_unary_rpc_method_handler(fail)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"Fail": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


@pytest.mark.parametrize(("address", "error", "code"), [(e, e, c) for e, c in ERRORS], indirect=["address"], ids=str)
async def test_an_error_comes_back_as_itself(address: str, error: Exception, code: grpc.StatusCode) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t.T/Fail")(b"")
    assert caught.value.code() is code
    ours = from_rpc_error(caught.value)
    if isinstance(error, errors.OutriderError):
        assert isinstance(ours, type(error))
        assert str(ours) == str(error)
    else:
        assert isinstance(ours, errors.InternalError)
        assert "a bug" not in str(ours)  # what went wrong inside stays in the log
    if isinstance(error, errors.InvalidArgument):
        assert isinstance(ours, errors.InvalidArgument)
        assert (ours.field, ours.value, ours.limit) == ("top_p", "3.5", "at most 1")
    if isinstance(error, errors.ResourceExhausted):
        assert isinstance(ours, errors.ResourceExhausted)
        assert ours.retry_after_s == 2.5


async def test_nobody_there_is_unavailable() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t.T/Fail")(b"", timeout=5)
    assert isinstance(from_rpc_error(caught.value), errors.Unavailable)


def test_details_follow_googles_error_model() -> None:
    status = to_status(errors.InvalidArgument("top_p", 3.5, "at most 1"))
    request = error_details_pb2.BadRequest()
    assert status.code == code_pb2.INVALID_ARGUMENT
    assert status.details[0].Unpack(request)
    assert request.field_violations[0].field == "top_p"
    retry = error_details_pb2.RetryInfo()
    assert to_status(errors.ResourceExhausted("full", 0.5)).details[0].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 500
