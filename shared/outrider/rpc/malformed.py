"""Bytes that are no message: the caller's fault, and on a stream the fault of one frame. gRPC itself blames the server.

Without this a message that cannot be decoded ends its call with UNKNOWN and a stack trace in the log, and one such
frame ends the stream of every session on it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from outrider.errors import InvalidArgument
from outrider.rpc.handlers import taken_apart
from outrider.rpc.status import errors_as_status
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True, slots=True)
class Undecodable:
    """What stands in the place of a message that could not be decoded."""

    size: int  # bytes


class MalformedGuard(grpc.aio.ServerInterceptor):
    """Answers an undecodable request with INVALID_ARGUMENT; leaves an undecodable frame of a stream out."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Put a decoder that cannot fail before a method, and the check of what it gives."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        decode, encode = lenient(handler.request_deserializer), handler.response_serializer
        inner, make = taken_apart(handler)
        prepare = _readable if handler.request_streaming else _checked
        return make(_wrap(inner, prepare), decode, encode)  # type: ignore[no-any-return]


def lenient(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """`decode`, which gives an Undecodable where it would raise: gRPC would hand on None, and log a stack trace."""

    def attempt(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return Undecodable(len(data))

    return attempt


def _wrap(inner: Callable[[Any, Any], Any], prepare: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """`inner`, called with the prepared request; gRPC wants generators and coroutines told apart."""
    if inspect.isasyncgenfunction(inner):

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            async with errors_as_status(context):
                prepared = prepare(request)
            async for response in inner(prepared, context):
                yield response

        return stream

    async def call(request: Any, context: Any) -> Any:
        async with errors_as_status(context):
            prepared = prepare(request)
        return await inner(prepared, context)

    return call


def _checked(request: Any) -> Any:
    if isinstance(request, Undecodable):
        raise InvalidArgument("request", f"{request.size} bytes", "a message of the method's type")
    return request


async def _readable(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if isinstance(request, Undecodable):
            log.warning("a frame of %d bytes that is no message was ignored", request.size)
        else:
            yield request
