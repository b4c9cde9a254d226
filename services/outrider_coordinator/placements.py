"""Where this coordinator's sessions are, and with the registry's records: how busy each replica is. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.routing.choose import Candidate
from outrider.routing.records import ReplicaRecord
from outrider.routing.store import Binding


@dataclass(slots=True)
class Placement:
    """One session's place: chosen first, bound once it is open there."""

    name: str  # of the session in the store
    address: str
    tokens: int  # KV it may come to need
    found: Binding | None = None  # what the session was bound to when the place was chosen
    text: Sequence[bytes] = ()  # the beginnings of its text
    binding: Binding | None = None


class Placements:
    """The places of one role's sessions, in the order they were chosen."""

    def __init__(self, coordinator: str) -> None:
        """`coordinator` is the name under which replicas count our sessions."""
        self._coordinator = coordinator
        self._by_session: dict[int, Placement] = {}

    def add(self, session: int, placement: Placement) -> None:
        """A session goes there, now or soon."""
        self._by_session.pop(session, None)
        self._by_session[session] = placement

    def get(self, session: int) -> Placement | None:
        """Where a session is."""
        return self._by_session.get(session)

    def remove(self, session: int, address: str) -> Placement | None:
        """The session is no longer there; its placement, unless it is elsewhere by now."""
        placement = self._by_session.get(session)
        if placement is None or placement.address != address:
            return None
        return self._by_session.pop(session)

    def loads(self) -> Counter[str]:
        """Sessions of ours on each replica that has any."""
        return Counter(placement.address for placement in self._by_session.values())

    def candidate(self, address: str, record: ReplicaRecord | None, *, listed: bool) -> Candidate:
        """A replica as it is now: what it last told of others' sessions, and what we know of our own.

        Our newest sessions, those beyond the number that it told, are not in the free room that it told either.
        """
        ours = [placement for placement in self._by_session.values() if placement.address == address]
        if record is None:
            return Candidate(address, len(ours), listed=listed)
        told = record.sessions.get(self._coordinator, 0)
        untold = sum(placement.tokens for placement in ours[told:])
        others = sum(record.sessions.values()) - told
        free = record.free_tokens - untold
        return Candidate(address, others + len(ours), free, draining=record.draining, listed=listed)
