"""A gRPC server's life: listen, health, reflection, ready line, SIGTERM, drain, stop. The same in every service."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from outrider.errors import ConfigError, InternalError
from outrider.rpc.calls import RunningCalls
from outrider.rpc.channel import SERVER_OPTIONS, is_loopback
from outrider.rpc.malformed import MalformedGuard
from outrider.rpc.tls import ServerTls
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

FLUSH_S = 2.0
"""Longest wait, in seconds, for the last messages of calls whose work is done."""


class Server:
    """One listening server. `add` the services, then `run` until a signal; health is SERVING only in between."""

    def __init__(
        self,
        role: str,
        listen: str,
        *,
        tls: ServerTls | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        """`listen` is host:port; without `tls` the port is unencrypted. `options` replace those of SERVER_OPTIONS."""
        self.role = role
        self._listen = listen
        self._tls = tls
        self._health = health.aio.HealthServicer()
        self._names: list[str] = [health.SERVICE_NAME, reflection.SERVICE_NAME]
        self._stopping = asyncio.Event()
        self._failure: str | None = None
        self._calls = RunningCalls()
        self.grpc = grpc.aio.server(
            options=[*dict([*SERVER_OPTIONS, *options]).items()],
            interceptors=[self._calls, *interceptors, MalformedGuard()],
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        self.port = 0
        self.on_start: Callable[[str], None] = lambda address: None  # called once the server listens

    def add(self, name: str, register: Callable[[grpc.aio.Server], None]) -> None:
        """Add the service called `name`; `register` is its generated add_..._to_server, bound to the servicer."""
        register(self.grpc)
        self._names.append(name)

    async def start(self) -> str:
        """Listen; return the address in use. Raise ConfigError if it cannot be had."""
        reflection.enable_server_reflection(self._names, self.grpc)
        try:
            if self._tls is None:
                self.port = self.grpc.add_insecure_port(self._listen)
            else:
                self.port = self.grpc.add_secure_port(self._listen, self._tls.credentials())
        except RuntimeError as error:
            raise ConfigError(f"listen: cannot listen on {self._listen}: {error}") from error
        await self.grpc.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        address = f"{self._listen.rsplit(':', 1)[0]}:{self.port}"
        log.info("%s serves on %s, %s", self.role, address, self._encryption)
        if self._tls is None and not is_loopback(address):
            log.warning("%s is unencrypted and other machines can reach it; see tls_cert", address)
        self.on_start(address)
        return address

    async def run(self, drain: Callable[[], Awaitable[None]], *, grace_s: float) -> None:
        """Serve until SIGTERM or SIGINT; then NOT_SERVING, `drain` for at most `grace_s` seconds, stop.

        Raises InternalError after `fail`.
        """
        address = await self.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        print(f"ready {self.role} {address}", flush=True)
        await self._stopping.wait()
        await self.stop(drain, grace_s=grace_s if self._failure is None else 0.0)
        if self._failure is not None:
            raise InternalError(self._failure)

    def fail(self, why: str) -> None:
        """Stop at once: the process cannot serve any more."""
        self._failure = why
        self._stopping.set()

    async def stop(self, drain: Callable[[], Awaitable[None]], *, grace_s: float) -> None:
        """Say NOT_SERVING, give `drain` its grace, then end what is left with UNAVAILABLE."""
        log.info("%s drains for at most %g s", self.role, grace_s)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        try:
            async with asyncio.timeout(grace_s):
                await drain()
        except TimeoutError:
            log.warning("%s: work was left after %g s and is ended", self.role, grace_s)
        else:
            # The work is done, but its last messages may still be on their way out.
            await self._calls.ended(FLUSH_S)
        self._calls.cut(f"this {self.role} has ended before the call did: ask again, or another one")
        await self.grpc.stop(FLUSH_S)
        log.info("%s stopped", self.role)

    @property
    def _encryption(self) -> str:
        if self._tls is None:
            return "unencrypted"
        return "TLS" if self._tls.client_ca is None else "mutual TLS"

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        for name in ("", *self._service_names()):
            await self._health.set(name, status)

    def _service_names(self) -> Sequence[str]:
        return [name for name in self._names if name.startswith("outrider.")]


def run_event_loop(main: Awaitable[None]) -> None:
    """Run a service's main coroutine on uvloop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)  # type: ignore[arg-type]
    else:
        uvloop.run(main)
