"""Who may call GenerationService: an interceptor asks every call for its API key, and holds it to the key's limits."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from outrider.errors import ResourceExhausted, Unauthenticated
from outrider.rpc import api_key
from outrider.rpc.status import errors_as_status
from outrider_coordinator import keys
from outrider_coordinator.keys import ApiKey

_SERVICE = "/outrider.v1.GenerationService/"
_GENERATE = _SERVICE + "Generate"
_LIMITED = (_GENERATE, _SERVICE + "Tokenize")
"""What counts as a request; Abort and GetModelInfo cost next to nothing."""

BUSY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, and what that one may ask for. Without keys everybody is the same, unlimited caller."""

    owner: str = ""  # whose prompts and requests are apart from everybody else's
    max_tokens: int | None = None


ANYBODY = Caller()

_caller: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def current_caller() -> Caller:
    """Who makes the call that this task serves."""
    return _caller.get()


@dataclass(slots=True)
class _Usage:
    """What a key has in use."""

    running: int = 0
    tokens: float | None = None  # requests it may make at once; None: as many as its limit
    refilled: float = 0.0  # monotonic seconds

    def take(self, per_minute: int, now: float) -> float:
        """Use up one request; 0, or the seconds until there is one."""
        if self.tokens is None:
            self.tokens = per_minute
        else:
            self.tokens = min(per_minute, self.tokens + (now - self.refilled) * per_minute / 60)
        self.refilled = now
        if self.tokens < 1:
            return (1 - self.tokens) * 60 / per_minute
        self.tokens -= 1
        return 0.0


class KeyGuard(grpc.aio.ServerInterceptor):
    """Refuses calls of GenerationService without a known key, or beyond its limits. Health and reflection stay open."""

    def __init__(self, known: Callable[[], Sequence[ApiKey]], clock: Callable[[], float] = time.monotonic) -> None:
        """`known` gives the keys in force, at each call."""
        self._known = known
        self._clock = clock
        self._usage: dict[str, _Usage] = {}  # by the key's name

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Put the check before the handler of a GenerationService method."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(_SERVICE):
            return handler
        key = api_key.from_metadata(handler_call_details.invocation_metadata)
        behavior: Any = handler.unary_stream or handler.unary_unary
        assert behavior is not None, "a method with one request"
        assert not inspect.isasyncgenfunction(behavior), "a stream is written to its context"

        async def checked(request: Any, context: Any) -> Any:
            async with errors_as_status(context):
                with self.admitted(method, key):
                    return await behavior(request, context)

        make: Any = grpc.unary_stream_rpc_method_handler
        if handler.unary_stream is None:
            make = grpc.unary_unary_rpc_method_handler
        return make(checked, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]

    @contextmanager
    def admitted(self, method: str, key: str | None) -> Iterator[None]:
        """Hold what a call takes of its key's limits. Raise Unauthenticated, ResourceExhausted."""
        entry = self._identify(key)
        usage = self._usage.setdefault(entry.name, _Usage())
        if method in _LIMITED:
            self._limit(entry, usage, generates=method == _GENERATE)
        usage.running += method == _GENERATE
        token = _caller.set(Caller(entry.owner, entry.max_tokens))
        try:
            yield
        finally:
            _caller.reset(token)
            usage.running -= method == _GENERATE

    def _identify(self, key: str | None) -> ApiKey:
        if key is None:
            raise Unauthenticated("this service needs an API key: set OUTRIDER_API_KEY, or `authorization: Bearer KEY`")
        entry = keys.find(self._known(), key)
        if entry is None:
            raise Unauthenticated("the API key is not known here")
        return entry

    def _limit(self, entry: ApiKey, usage: _Usage, *, generates: bool) -> None:
        if generates and entry.max_concurrent is not None and usage.running >= entry.max_concurrent:
            message = f"key {entry.name} has {usage.running} answers in progress; max_concurrent is"
            raise ResourceExhausted(f"{message} {entry.max_concurrent}", BUSY_RETRY_S)
        if entry.requests_per_minute is not None:
            wait_s = usage.take(entry.requests_per_minute, self._clock())
            if wait_s > 0:
                message = f"key {entry.name} has used up its requests_per_minute, {entry.requests_per_minute}"
                raise ResourceExhausted(message, wait_s)
