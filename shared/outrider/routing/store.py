"""Which session is bound to which replica. Soft state: losing it costs placement quality, never correctness."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from outrider.routing.kept import Kept


@dataclass(frozen=True, slots=True)
class Binding:
    """One session's replica. `epoch` grows with every binding of a session: what carries an older one is too late."""

    replica: str  # address
    incarnation: str
    owner: str  # the coordinator that made it
    epoch: int


class Store(Protocol):
    """What routing needs to remember. Coordinators that share a registry share one."""

    async def find(self, session: str) -> Binding | None:
        """The session's binding, whoever made it."""

    async def bind(self, session: str, replica: str, incarnation: str, *, instead_of: Binding | None) -> Binding:
        """Bind a session in one step, provided that its binding still is `instead_of`, or that it has none.

        Returns the binding that stands afterwards: a new one of this store's owner, or the other's that was faster.
        """

    async def release(self, session: str, binding: Binding, *, keep_s: float = 0.0) -> None:
        """Drop a binding now or, unrenewed, after `keep_s` seconds; not if the session is bound anew by now."""

    async def run(self) -> None:
        """Keep the bindings made here alive until cancelled."""


def next_epoch(held: Binding | None) -> int:
    """An epoch after `held`: microseconds since 1970, so that it grows even where nothing is remembered."""
    return max(time.time_ns() // 1000, held.epoch + 1 if held else 0)


class InProcessStore:
    """The store of one coordinator on one machine."""

    def __init__(self, owner: str) -> None:
        """`owner` is the coordinator's name."""
        self._owner = owner
        self._bindings: dict[str, Binding] = {}
        self._kept: Kept[Binding] = Kept()  # of sessions that ended and may go on

    async def find(self, session: str) -> Binding | None:
        """See Store."""
        return self._bindings.get(session) or self._kept.get(session)

    async def bind(self, session: str, replica: str, incarnation: str, *, instead_of: Binding | None) -> Binding:
        """See Store."""
        held = self._bindings.get(session) or self._kept.get(session)
        if held is not None and held != instead_of:
            return held
        self._kept.drop(session)
        self._bindings[session] = made = Binding(replica, incarnation, self._owner, next_epoch(held))
        return made

    async def release(self, session: str, binding: Binding, *, keep_s: float = 0.0) -> None:
        """See Store."""
        if self._bindings.get(session) == binding:
            del self._bindings[session]
            if keep_s > 0:
                self._kept.put(session, binding, keep_s)

    async def run(self) -> None:
        """Nothing has to be renewed here."""
