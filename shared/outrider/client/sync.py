"""The client for ordinary, blocking code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar, Unpack

import grpc

from outrider.client.channel import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S, call_metadata, channel_options, deadline
from outrider.client.collector import Collector
from outrider.client.convert import generate_request, service_info_from_proto, tokenize_request
from outrider.client.options import ChatMessage, RequestOptions
from outrider.client.results import Chunk, Completion, ServiceInfo
from outrider.rpc.status import from_rpc_error
from outrider.rpc.tls import ClientTls
from outrider.v1 import generation_pb2, generation_pb2_grpc

_Response = TypeVar("_Response")


class _Call(Protocol):
    def __next__(self) -> generation_pb2.GenerateResponse: ...

    def cancel(self) -> bool: ...


class Client:
    """A connection to a coordinator at `address`, to be used as a context manager and from any number of threads.

    Every method raises the errors of `outrider.errors`; every call has a deadline, `timeout` seconds unless the call
    says otherwise. With `tls` the connection is encrypted; its files are read here, so that a new client is what takes
    in replaced ones. `api_key` is by default what the environment variable OUTRIDER_API_KEY holds.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        tls: ClientTls | None = None,
        api_key: str | None = None,
    ) -> None:
        self._timeout = deadline(timeout, DEFAULT_TIMEOUT_S)
        options = channel_options(address)
        self._metadata = call_metadata(api_key, address, encrypted=tls is not None)
        if tls is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, tls.credentials(), options)
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every call in progress and the connection."""
        self._channel.close()

    def generate(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[RequestOptions]
    ) -> Completion:
        """The whole answer to `prompt` (or to `token_ids=`, or to `messages=`). See `RequestOptions` for the rest."""
        with self.stream(prompt, timeout=timeout, **options) as stream:
            return stream.read()

    def stream(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[RequestOptions]
    ) -> CompletionStream:
        """The answer as it comes, chunk by chunk. Leaving the loop or the `with` block early cancels the request."""
        request = generate_request(prompt, options)
        return CompletionStream(
            self._stub.Generate(request, timeout=deadline(timeout, self._timeout), metadata=self._metadata)
        )

    def abort(self, request_id: str, *, timeout: float | None = None) -> bool:
        """End a generation, which then finishes with reason `abort`. False if none with that id was running."""
        request = generation_pb2.AbortRequest(request_id=request_id)
        return self._call(self._stub.Abort, request, timeout).aborted

    def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[ChatMessage] | None = None,
        timeout: float | None = None,
    ) -> tuple[int, ...]:
        """The token ids the model would see for `text`, or for `messages` in its chat template."""
        response = self._call(self._stub.Tokenize, tokenize_request(text, messages), timeout)
        return tuple(response.token_ids)

    def model_info(self, *, timeout: float | None = None) -> ServiceInfo:
        """What the coordinator serves: the target, the connected draft models, the default speculation."""
        request = generation_pb2.GetModelInfoRequest()
        return service_info_from_proto(self._call(self._stub.GetModelInfo, request, timeout))

    def _call(self, method: Callable[..., _Response], request: object, timeout: float | None) -> _Response:
        try:
            return method(request, timeout=deadline(timeout, self._timeout), metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


class CompletionStream:
    """An answer in progress: iterate over it once, then ask for its `result`.

    A loop that is left early, by `break` or an error, cancels the request, as does leaving the `with` block.
    """

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._collector = Collector()

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while True:
                try:
                    chunk = next(self)
                except StopIteration:
                    return
                yield chunk
        finally:
            self.cancel()

    def __next__(self) -> Chunk:
        if self._collector.ended:
            raise StopIteration
        try:
            while (chunk := self._collector.feed(next(self._call))) is None:
                pass
        except StopIteration:
            self._collector.end()
            raise
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def read(self) -> Completion:
        """Read what is left and return the whole answer."""
        for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """End the request; reading on raises Cancelled. Harmless after the end, and safe from another thread."""
        self._call.cancel()

    @property
    def result(self) -> Completion:
        """The whole answer, with usage and statistics. Raises RuntimeError before the end of the stream."""
        return self._collector.completion

    @property
    def text(self) -> str:
        """The answer so far; still there after a cancellation or an error."""
        return self._collector.text
