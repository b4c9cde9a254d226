"""The calls that a server is serving, so that at its end each one is told why. gRPC itself would say CANCELLED."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio

from outrider.rpc.handlers import taken_apart

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class RunningCalls(grpc.aio.ServerInterceptor):
    """Knows every running call. Has to be the first interceptor: what it does not see it cannot end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over: str | None = None  # why calls are ended; None: they are not
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def ended(self, timeout_s: float) -> bool:
        """Wait until no call runs; False after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._none_left.wait()
        except TimeoutError:
            return False
        return True

    def cut(self, why: str) -> None:
        """End every call with UNAVAILABLE and these words; those that begin from now on end so as well."""
        self._over = why
        for task in self._tasks:
            task.cancel()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Note a method's calls while they run."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        inner, make = taken_apart(handler)
        return make(self._noted(inner), handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]

    def _noted(self, inner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """`inner`, noted; gRPC wants generators and coroutines told apart."""
        if inspect.isasyncgenfunction(inner):

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                async with self._running(context):
                    async for response in inner(request, context):
                        yield response

            return stream

        async def call(request: Any, context: Any) -> Any:
            async with self._running(context):
                return await inner(request, context)

        return call

    @asynccontextmanager
    async def _running(self, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._none_left.clear()
        try:
            if self._over is not None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, self._over)
            yield
        except asyncio.CancelledError:
            if self._over is None or context.done():
                raise  # it is the client who left
            task.uncancel()
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._over)
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._none_left.set()
