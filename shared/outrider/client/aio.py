"""The client for asyncio."""

# ruff: noqa: ASYNC109 (a `timeout` here is the deadline that the service is told, which asyncio.timeout cannot be)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack

import grpc
import grpc.aio

from outrider.client.channel import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S, call_metadata, channel_options, deadline
from outrider.client.collector import Collector
from outrider.client.convert import generate_request, service_info_from_proto, tokenize_request
from outrider.client.options import ChatMessage, RequestOptions
from outrider.client.results import Chunk, Completion, ServiceInfo
from outrider.errors import Cancelled
from outrider.rpc.status import from_rpc_error
from outrider.rpc.tls import ClientTls
from outrider.v1 import generation_pb2, generation_pb2_grpc

_Response = TypeVar("_Response")


class _Call(Protocol):
    def __aiter__(self) -> AsyncIterator[generation_pb2.GenerateResponse]: ...

    def cancel(self) -> bool: ...


class AsyncClient:
    """`outrider.client.Client` for asyncio: the same methods, awaited. One client serves one event loop.

    Connects on first use, so it may be made before the loop runs.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        tls: ClientTls | None = None,
        api_key: str | None = None,
    ) -> None:
        self._address = address
        self._timeout = deadline(timeout, DEFAULT_TIMEOUT_S)
        self._metadata = call_metadata(api_key, address, encrypted=tls is not None)
        self._credentials = tls.credentials() if tls is not None else None
        self._channel: grpc.aio.Channel | None = None
        self._connected_stub: generation_pb2_grpc.GenerationServiceAsyncStub | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every call in progress and the connection."""
        if self._channel is not None:
            await self._channel.close()

    async def generate(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[RequestOptions]
    ) -> Completion:
        """The whole answer to `prompt` (or to `token_ids=`, or to `messages=`). See `RequestOptions` for the rest."""
        async with self.stream(prompt, timeout=timeout, **options) as stream:
            return await stream.read()

    def stream(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncCompletionStream:
        """The answer as it comes, chunk by chunk. Not awaited: use `async for` on it, inside `async with`."""
        request = generate_request(prompt, options)
        return AsyncCompletionStream(
            self._stub.Generate(request, timeout=deadline(timeout, self._timeout), metadata=self._metadata)
        )

    async def abort(self, request_id: str, *, timeout: float | None = None) -> bool:
        """End a generation, which then finishes with reason `abort`. False if none with that id was running."""
        request = generation_pb2.AbortRequest(request_id=request_id)
        response: generation_pb2.AbortResponse = await self._call(self._stub.Abort, request, timeout)
        return response.aborted

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[ChatMessage] | None = None,
        timeout: float | None = None,
    ) -> tuple[int, ...]:
        """The token ids the model would see for `text`, or for `messages` in its chat template."""
        request = tokenize_request(text, messages)
        response: generation_pb2.TokenizeResponse = await self._call(self._stub.Tokenize, request, timeout)
        return tuple(response.token_ids)

    async def model_info(self, *, timeout: float | None = None) -> ServiceInfo:
        """What the coordinator serves: the target, the connected draft models, the default speculation."""
        request = generation_pb2.GetModelInfoRequest()
        return service_info_from_proto(await self._call(self._stub.GetModelInfo, request, timeout))

    @property
    def _stub(self) -> generation_pb2_grpc.GenerationServiceAsyncStub:
        if self._connected_stub is None:
            options = channel_options(self._address)
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._address, options)
            else:
                self._channel = grpc.aio.secure_channel(self._address, self._credentials, options)
            self._connected_stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
        return self._connected_stub

    async def _call(self, method: Callable[..., Any], request: object, timeout: float | None) -> Any:
        with _typed_errors():
            return await method(request, timeout=deadline(timeout, self._timeout), metadata=self._metadata)


class AsyncCompletionStream:
    """An answer in progress: iterate over it once, then ask for its `result`.

    A loop that is left early, by `break` or an error, cancels the request, as does leaving the `async with` block.
    """

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._responses = aiter(call)
        self._collector = Collector()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            while True:
                try:
                    chunk = await anext(self)
                except StopAsyncIteration:
                    return
                yield chunk
        finally:
            self.cancel()

    async def __anext__(self) -> Chunk:
        if self._collector.ended:
            raise StopAsyncIteration
        try:
            with _typed_errors():
                while (chunk := self._collector.feed(await anext(self._responses))) is None:
                    pass
        except StopAsyncIteration:
            self._collector.end()
            raise
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def read(self) -> Completion:
        """Read what is left and return the whole answer."""
        async for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """End the request; reading on raises Cancelled. Harmless after the end."""
        self._call.cancel()

    @property
    def result(self) -> Completion:
        """The whole answer, with usage and statistics. Raises RuntimeError before the end of the stream."""
        return self._collector.completion

    @property
    def text(self) -> str:
        """The answer so far; still there after a cancellation or an error."""
        return self._collector.text


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Raise gRPC's errors as ours.

    grpc.aio raises CancelledError for every call that ended with CANCELLED, even if the service or `cancel` ended it;
    only where this very task is being cancelled may that pass.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Cancelled("the request was cancelled") from None
