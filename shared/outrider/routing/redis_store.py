"""The bindings of coordinators that share a registry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outrider.errors import Unavailable
from outrider.routing import scripts
from outrider.routing.connection import RegistryConnection
from outrider.routing.kept import Kept
from outrider.routing.store import Binding, next_epoch
from outrider.telemetry import metrics
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

RENEWED_AT_ONCE = 500
"""Bindings a script renews in one step: about a millisecond of the server's time."""


class RedisStore:
    """A Store in the registry. While that is away, bindings are made here alone and put there when it is back."""

    def __init__(self, connection: RegistryConnection, owner: str, *, ttl_s: float) -> None:
        """`owner` is this coordinator's name, unique among all. Bindings last `ttl_s` seconds and are renewed."""
        self._connection = connection
        self._owner = owner
        self._ttl_s = ttl_s
        self._held: dict[str, Binding] = {}  # bindings made here, of sessions that run here
        self._kept: Kept[Binding] = Kept()  # bindings made here, of sessions that ended here and may go on

    async def find(self, session: str) -> Binding | None:
        """See Store. While the registry is away, or has lost them, only the bindings made here are known."""
        try:
            found = _binding(await self._connection.run(scripts.FIND, [self._key(session)]))
        except Unavailable:
            found = None
        return found or self._held.get(session) or self._kept.get(session)

    async def bind(self, session: str, replica: str, incarnation: str, *, instead_of: Binding | None) -> Binding:
        """See Store."""
        epoch = instead_of.epoch if instead_of else 0
        arguments = (epoch, replica, incarnation, self._owner, round(self._ttl_s * 1000))
        try:
            stands = _binding(await self._connection.run(scripts.BIND, [self._key(session)], *arguments))
            assert stands is not None
        except Unavailable:
            stands = Binding(replica, incarnation, self._owner, next_epoch(instead_of))
        if (stands.replica, stands.incarnation, stands.owner) == (replica, incarnation, self._owner):
            self._held[session] = stands
            self._kept.drop(session)
            metrics.bindings.add(1, {"outcome": "bound" if instead_of is None else "replaced"})
        else:
            metrics.bindings.add(1, {"outcome": "other was faster"})
        return stands

    async def release(self, session: str, binding: Binding, *, keep_s: float = 0.0) -> None:
        """See Store. While the registry is away, its copy ends with its TTL."""
        if self._held.get(session) == binding:
            del self._held[session]
            if keep_s > 0:
                self._kept.put(session, binding, keep_s)
        try:
            await self._let_go(session, binding)
        except Unavailable as error:
            log.debug("%s stays bound for at most %g s: %s", session, self._ttl_s, error)

    async def run(self) -> None:
        """Renew the bindings made here, three times within their TTL, until cancelled."""
        while True:
            await asyncio.sleep(self._connection.wait_s(self._ttl_s / 3))
            held = list(self._held.items())
            try:
                for start in range(0, len(held), RENEWED_AT_ONCE):
                    await self._renew(held[start : start + RENEWED_AT_ONCE])
            except Unavailable as error:
                log.debug("bindings were not renewed: %s", error)

    async def _renew(self, batch: Sequence[tuple[str, Binding]]) -> None:
        keys = [self._key(session) for session, _ in batch]
        fields = [field for _, held in batch for field in (held.epoch, held.replica, held.incarnation, held.owner)]
        lost = await self._connection.run(scripts.RENEW, keys, round(self._ttl_s * 1000), *fields)
        for number in lost:
            session, held = batch[number - 1]
            log.warning("session %s is bound by another coordinator now, no longer to %s", session, held.replica)
            metrics.bindings.add(1, {"outcome": "lost"})
            if self._held.get(session) == held:
                del self._held[session]
        for session, held in batch:
            if self._held.get(session) != held:  # released meanwhile: this may have put it back
                await self._let_go(session, held)

    async def _let_go(self, session: str, binding: Binding) -> None:
        """Drop the registry's copy at once, or when it is no longer kept here."""
        left_ms = round(self._kept.left_s(session, binding) * 1000)
        await self._connection.run(scripts.RELEASE, [self._key(session)], binding.epoch, left_ms)

    def _key(self, session: str) -> str:
        return self._connection.key("binding", session)


def _binding(fields: Sequence[str]) -> Binding | None:
    if not fields:
        return None
    epoch, replica, incarnation, owner = fields
    return Binding(replica, incarnation, owner, int(epoch))
