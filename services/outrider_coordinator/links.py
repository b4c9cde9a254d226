"""The links to the replicas of one role: those of fixed addresses, and those that the registry lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from outrider.errors import Unavailable
from outrider.routing.records import ReplicaRecord
from outrider.rpc.replica_link import ReplicaLink
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

Link = TypeVar("Link", bound=ReplicaLink[Any, Any])


class Links(Generic[Link]):
    """Starts and ends links as replicas come and go. Their tasks belong to the group that `start` is given."""

    def __init__(self, make: Callable[[str], Link], fixed: Sequence[str]) -> None:
        """`make` makes the link to an address; links to `fixed` addresses stay, whatever the registry says."""
        self._make = make
        self._fixed = frozenset(fixed)
        self._links: dict[str, Link] = {address: make(address) for address in fixed}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._changed = asyncio.Event()
        self.records: Mapping[str, ReplicaRecord] = {}  # by address, as the registry last told

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def __len__(self) -> int:
        return len(self._links)

    def listed(self, address: str) -> bool:
        """False for a replica that the registry had and has no more."""
        return address in self._fixed or address in self.records

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Keep every link connected, these and later ones."""
        self._tasks = tasks
        for link in self:
            self._run(link)

    def follow(self, records: Mapping[str, ReplicaRecord], *, busy: Collection[str]) -> None:
        """Take in what the registry lists, by address. `busy` are the addresses that have sessions of ours.

        A link goes when its replica is listed no more and its stream is down, or when the replica drains and is not
        busy, so that it can end before its grace does. A new incarnation's link connects anew, since the old
        stream may look alive for a while where a machine vanished.
        """
        before, self.records = self.records, records
        for address, record in records.items():
            known = self._links.get(address)
            if known is None:
                if not record.draining:
                    self._add(address)
            elif known.welcome is not None and address in before:
                old = before[address].incarnation
                if known.welcome.incarnation == old != record.incarnation:
                    log.info("%s was restarted (%s)", address, record.incarnation[:8])
                    self._run(known)
        for address in self._links.keys() - self._fixed:
            if self._is_over(address, busy):
                self._drop(address)
        self._changed.set()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return when a link that is down or drains comes up, or the registry told something, or after `timeout_s`."""
        self._changed.clear()
        waits: list[asyncio.Task[bool]] = [asyncio.create_task(_is_set(self._changed))]
        waits += [asyncio.create_task(_is_up(link, timeout_s)) for link in self if not link.takes_new]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def states(self) -> str:
        """Every link and how it is, for an error."""
        return "; ".join(_state(link, self.records.get(link.address)) for link in self) or "none is known"

    def _is_over(self, address: str, busy: Collection[str]) -> bool:
        record = self.records.get(address)
        if record is None:
            return not self._links[address].ready
        return record.draining and address not in busy

    def _add(self, address: str) -> None:
        log.info("%s was found in the registry", address)
        self._links[address] = link = self._make(address)
        self._run(link)

    def _drop(self, address: str) -> None:
        log.info("%s is gone", address)
        del self._links[address]
        if (run := self._runs.pop(address, None)) is not None:
            run.cancel()

    def _run(self, link: Link) -> None:
        """Connect a link, anew if it was connected."""
        assert self._tasks is not None, "started"
        old = self._runs.get(link.address)
        if old is not None:
            old.cancel()
        self._runs[link.address] = self._tasks.create_task(_run_after(old, link), name=f"link to {link.address}")


async def _run_after(old: asyncio.Task[None] | None, link: ReplicaLink[Any, Any]) -> None:
    if old is not None:
        await asyncio.wait([old], timeout=5.0)
    await link.run()


async def _is_set(event: asyncio.Event) -> bool:
    return await event.wait()


async def _is_up(link: ReplicaLink[Any, Any], timeout_s: float) -> bool:
    try:
        await link.wait_ready(timeout_s)
    except Unavailable:
        return False
    return True


def _state(link: ReplicaLink[Any, Any], record: ReplicaRecord | None) -> str:
    if link.ready:
        drains = not link.takes_new or (record is not None and record.draining)
        return f"{link.address} {'drains' if drains else 'is up'}"
    return f"{link.address} {link.refusal or 'is down'}"
