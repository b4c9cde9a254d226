"""Which session is bound to which replica. Soft state: losing it costs placement quality, never correctness."""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Store(Protocol):
    """What routing needs to remember; coordinators on several machines would share one."""

    async def bind(self, session: str, replica: str) -> None:
        """Bind a session to a replica, replacing its earlier binding in one step."""

    async def release(self, session: str, replica: str) -> None:
        """Drop the binding, unless the session is bound elsewhere by now."""

    async def loads(self) -> dict[str, int]:
        """Sessions bound to each replica that has any."""


class InProcessStore:
    """The store of one coordinator on one machine."""

    def __init__(self) -> None:
        self._bindings: dict[str, str] = {}

    async def bind(self, session: str, replica: str) -> None:
        """See Store."""
        self._bindings[session] = replica

    async def release(self, session: str, replica: str) -> None:
        """See Store."""
        if self._bindings.get(session) == replica:
            del self._bindings[session]

    async def loads(self) -> dict[str, int]:
        """See Store."""
        return dict(Counter(self._bindings.values()))
