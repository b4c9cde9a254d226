"""A replica's place in the registry, from its first heartbeat to its last word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outrider.errors import Unavailable
from outrider.routing.records import ReplicaRecord
from outrider.routing.registry import Registry
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)


class Registration:
    """Keeps one replica registered. `run` is a task; serving never depends on it."""

    def __init__(
        self, registry: Registry, describe: Callable[[], ReplicaRecord], *, heartbeat_s: float, ttl_s: float
    ) -> None:
        """`describe` gives the replica as it is now, and is called on the event loop at each heartbeat."""
        self._registry = registry
        self._describe = describe
        self._heartbeat_s = heartbeat_s
        self._ttl_s = ttl_s
        self._changed = asyncio.Event()
        self._rival = ""  # incarnation that was found registered in our place

    def changed(self) -> None:
        """Register again now, without waiting for the next heartbeat; what `describe` says has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Register at every heartbeat until cancelled; while the registry is away, try again with back-off."""
        first = True
        while True:
            self._changed.clear()
            try:
                await self._register(first)
                first = False
            except Unavailable as error:
                log.debug("not registered: %s", error)
            try:
                async with asyncio.timeout(self._registry.connection.wait_s(self._heartbeat_s)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def leave(self) -> None:
        """Take the replica off the list and close the connection; without the registry its TTL does that."""
        try:
            await self._registry.unregister(self._describe())
        except Unavailable as error:
            log.debug("not unregistered: %s", error)
        await self.close()

    async def close(self) -> None:
        """Close the connection without a word, as a crash would."""
        await self._registry.connection.close()

    async def _register(self, first: bool) -> None:
        record = self._describe()
        before = await self._registry.register(record, self._ttl_s)
        if first:
            log.info("registered as %s", record.place)
        elif before is not None and before.incarnation not in (record.incarnation, self._rival):
            self._rival = before.incarnation
            log.error("another replica registers as %s too: give each an address of its own", record.place)
