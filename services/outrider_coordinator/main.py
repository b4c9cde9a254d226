"""The coordinator process."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Sequence
from functools import partial

from outrider.errors import ConfigError, Unavailable
from outrider.routing.redis_store import RedisStore
from outrider.routing.registry import Registry
from outrider.routing.store import InProcessStore, Store
from outrider.rpc.channel import is_loopback
from outrider.rpc.garbage import collect_seldom
from outrider.rpc.main import run_service
from outrider.rpc.server import Server, run_event_loop
from outrider.telemetry.logs import get_logger
from outrider.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from outrider_coordinator.convert import Defaults
from outrider_coordinator.discovery import Discovery
from outrider_coordinator.generations import Generations
from outrider_coordinator.guard import KeyGuard
from outrider_coordinator.keys import known_keys
from outrider_coordinator.recorder import Recorder
from outrider_coordinator.replicas import Replicas
from outrider_coordinator.request import DrafterKind
from outrider_coordinator.servicer import GenerationServicer
from outrider_coordinator.settings import CoordinatorSettings

log = get_logger(__name__)

GENERATION_SERVICE = "outrider.v1.GenerationService"


def main(argv: Sequence[str]) -> int:
    """Run the coordinator; its exit status."""
    return run_service("outrider-coordinator", CoordinatorSettings, run, argv)


def run(settings: CoordinatorSettings) -> None:
    """Serve until a signal."""
    run_event_loop(serve(settings))


async def serve(settings: CoordinatorSettings) -> None:
    """Connect to the replicas, then serve clients until a signal."""
    coordinator = Coordinator(settings)
    try:
        await coordinator.connect()
        collect_seldom()
        await coordinator.server.run(coordinator.drain, grace_s=settings.grace_s)
    finally:
        await coordinator.disconnect()


class Coordinator:
    """The coordinator's parts, put together. Made inside the event loop."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        # Unlike any other coordinator's, in other containers and in earlier lives of this one too.
        name = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._registry = settings.connect_registry()
        store: Store = InProcessStore(name)
        if self._registry is not None:
            store = RedisStore(self._registry, name, ttl_s=settings.binding_ttl_s)
        self.replicas = Replicas(
            settings.verifiers,
            settings.drafts,
            store,
            name=name,
            tls=settings.client_tls,
            silence_s=settings.replica_silence_s,
        )
        self.generations = Generations(self.replicas, settings)
        defaults = Defaults(settings.speculation, settings.default_max_tokens, settings.limits)
        servicer = GenerationServicer(self.replicas, self.generations, defaults)
        self.server = Server(
            "coordinator",
            settings.listen,
            tls=settings.server_tls,
            interceptors=_guards(settings),
            options=[
                ("grpc.max_receive_message_length", settings.max_message_mb << 20),
                ("grpc.max_concurrent_streams", settings.max_streams),
            ],
        )
        self.server.add(GENERATION_SERVICE, partial(add_GenerationServiceServicer_to_server, servicer))
        self._links: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Return when a verifier is known, so that requests can be checked and served. Drafts may come later.

        Raises Unavailable if none answers in time, ConfigError if a draft model is to guess and there is none.
        """
        self._links = asyncio.create_task(self._keep_connected(), name="links")
        self._links.add_done_callback(self._links_ended)
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                target = await self.replicas.target()
        except TimeoutError:
            places = [*self._settings.verifiers, *([f"registry {self._registry.url}"] if self._registry else [])]
            seconds = self._settings.start_timeout_s
            raise Unavailable(f"no verifier answered within {seconds:g} s (tried {', '.join(places)})") from None
        log.info("target: %s", target.model)
        await self._require_a_draft()
        self.generations.recorder = self._recorder(target.model.vocabulary_fingerprint)

    async def _require_a_draft(self) -> None:
        """Raise ConfigError if the settings want a draft model and there will be none."""
        settings = self._settings
        if settings.drafter is not DrafterKind.MODEL or settings.drafts or self._registry is not None:
            return
        links = self.replicas.verifiers
        waits = [asyncio.create_task(link.wait_ready(settings.start_timeout_s)) for link in links]
        try:  # whether a verifier drafts it says once it is connected
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not any(link.drafts for link in links):
            raise ConfigError(
                "drafter is model, but drafts is empty and no verifier has a draft of its own: "
                "set --drafts to the draft's address, or --draft-model of the verifier"
            )

    async def drain(self) -> None:
        """Take nothing new; return when nothing runs any more."""
        self.generations.close()
        await self.generations.admission.drained()

    async def disconnect(self) -> None:
        """Close the links; the replicas free what they held."""
        if self._links is not None:
            self._links.cancel()
            await asyncio.gather(self._links, return_exceptions=True)
        if self._registry is not None:
            await self._registry.close()
        if self.generations.recorder is not None:
            await asyncio.to_thread(self.generations.recorder.stop)
            self.generations.recorder = None

    async def _keep_connected(self) -> None:
        """To the replicas, and to the registry that lists them, if there is one."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.replicas.run(), name="replicas")
            if self._registry is not None:
                discovery = Discovery(Registry(self._registry), self.replicas, heartbeat_s=self._settings.heartbeat_s)
                tasks.create_task(discovery.run(), name="discovery")

    def _recorder(self, fingerprint: str) -> Recorder | None:
        settings = self._settings
        if settings.record_to is None:
            return None
        log.info("recording %g of the answers to %s", settings.record_share, settings.record_to)
        size = settings.record_max_mb * 1_000_000
        return Recorder(
            settings.record_to, share=settings.record_share, max_bytes=size, vocabulary_fingerprint=fingerprint
        )

    def _links_ended(self, links: asyncio.Task[None]) -> None:
        if not links.cancelled():  # a link never ends by itself: this is a bug, and no session could go on
            self.server.fail(f"the links to the replicas ended: {links.exception()!r}")


def _guards(settings: CoordinatorSettings) -> list[KeyGuard]:
    """What stands before the API: a check of keys, if there are any."""
    known = known_keys(settings.api_keys_file, settings.api_keys)
    if known is not None:
        return [KeyGuard(known)]
    if not is_loopback(settings.listen):
        log.warning("no API keys: whoever reaches %s is served; see api_keys_file", settings.listen)
    return []
