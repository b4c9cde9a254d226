"""The coordinator process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from outrider.errors import ConfigError, Unavailable
from outrider.routing.store import InProcessStore
from outrider.rpc.main import run_service
from outrider.rpc.server import Server, run_event_loop
from outrider.telemetry.logs import get_logger
from outrider.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from outrider_coordinator.convert import Defaults
from outrider_coordinator.generations import Generations
from outrider_coordinator.replicas import Replicas
from outrider_coordinator.request import DrafterKind
from outrider_coordinator.servicer import GenerationServicer
from outrider_coordinator.settings import CoordinatorSettings

log = get_logger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the coordinator; its exit status."""
    return run_service("outrider-coordinator", CoordinatorSettings, run, argv)


def run(settings: CoordinatorSettings) -> None:
    """Serve until a signal. Raise ConfigError for settings that contradict each other."""
    if settings.drafter is DrafterKind.MODEL and not settings.drafts:
        raise ConfigError("drafter is model, but drafts is empty: set --drafts to the draft's address")
    run_event_loop(serve(settings))


async def serve(settings: CoordinatorSettings) -> None:
    """Connect to the replicas, then serve clients."""
    name = f"{socket.gethostname()}:{settings.listen.rsplit(':', 1)[-1]}"
    replicas = Replicas(settings.verifiers, settings.drafts, InProcessStore(), name=name)
    links = asyncio.create_task(replicas.run(), name="links")
    try:
        await _wait_for_target(replicas, links, settings.start_timeout_s)
        generations = Generations(replicas, settings)
        servicer = GenerationServicer(
            replicas, generations, Defaults(settings.speculation, settings.default_max_tokens)
        )
        server = Server("coordinator", settings.listen)
        server.add(
            "outrider.v1.GenerationService",
            lambda grpc_server: add_GenerationServiceServicer_to_server(servicer, grpc_server),
        )
        links.add_done_callback(
            lambda task: None if task.cancelled() else server.fail(f"links ended: {task.exception()!r}")
        )
        await server.run(generations.admission.drained, grace_s=settings.grace_s)
    finally:
        links.cancel()
        await asyncio.gather(links, return_exceptions=True)


async def _wait_for_target(replicas: Replicas, links: asyncio.Task[None], timeout_s: float) -> None:
    """Ready means: a verifier is known, so requests can be validated and served. Drafts may come later."""
    target = asyncio.create_task(replicas.target())
    await asyncio.wait({target, links}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if links.done():
        links.result()
    if not target.done():
        target.cancel()
        addresses = ", ".join(link.address for link in replicas.verifiers)
        raise Unavailable(f"no verifier answered within {timeout_s:g} s (tried {addresses})")
    log.info("target: %s", target.result().model)
