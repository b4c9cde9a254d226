"""Watches the registry and tells `Replicas` who comes and goes."""

from __future__ import annotations

import asyncio
import time

from outrider.errors import Unavailable
from outrider.routing.registry import Registry
from outrider.routing.view import View, look_again
from outrider.telemetry.logs import get_logger
from outrider_coordinator.replicas import Replicas

log = get_logger(__name__)

KEEP_HEARTBEATS = 5
"""For so many heartbeats a replica stays known after the registry lost what it held."""


class Discovery:
    """Looks once a heartbeat. `run` is a task.

    Looking beats being told: a look sees expired replicas, which send no message; it needs no second connection, loses
    nothing when it reconnects, and is one small reply. It is also what finds out that the registry is back.
    """

    def __init__(self, registry: Registry, replicas: Replicas, *, heartbeat_s: float) -> None:
        self._registry = registry
        self._replicas = replicas
        self._heartbeat_s = heartbeat_s

    async def run(self) -> None:
        """Look until cancelled. While the registry is away, what was last seen stands."""
        view, interrupted = View(), False
        while True:
            try:
                listing = await self._registry.look()
            except Unavailable as error:
                interrupted = True
                log.debug("what was last seen stands: %s", error)
            else:
                keep_s = KEEP_HEARTBEATS * self._heartbeat_s
                view = look_again(view, listing, now=time.monotonic(), keep_s=keep_s, interrupted=interrupted)
                interrupted = False
                await self._replicas.follow(view)
            await asyncio.sleep(self._registry.connection.wait_s(self._heartbeat_s))
