"""One item's reply on a replica stream: awaited, arrived, or what came in its place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from outrider.errors import OutriderError
from outrider.protocol.items import Close, DraftAhead, FailureCode, Key, Open, Propose, Verify

VERDICT = "verdict"
ANSWERS: dict[type, str] = {
    Open: "opened",
    Verify: VERDICT,
    Propose: "proposal",
    DraftAhead: "drafted_ahead",
    Close: "closed",
}
"""What an item is answered with, unless with an error. It tells an opening from the round after it, of the same key."""


class Keyed(Protocol):
    """An item or a reply: its key says whose and of which moment it is."""

    @property
    def key(self) -> Key:
        """Session, epoch and base length."""
        ...


Reply = TypeVar("Reply", bound=Keyed)


class ItemError(OutriderError):
    """The replica refused or failed one item."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Exchange(Generic[Reply]):
    """A reply, and what it and its request weighed on the wire."""

    reply: Reply
    wire_bytes: int


@dataclass(slots=True)
class Pending:
    """A reply that is to come, or that came and waits to be received."""

    sent_bytes: int
    event: str  # of `ANSWERS`
    result: Exchange[Any] | OutriderError | None = None
    waiter: asyncio.Future[None] | None = None

    def settle(self, result: Exchange[Any] | OutriderError) -> None:
        """Keep what came first, and wake whoever waits for it."""
        if self.result is None:
            self.result = result
            _wake(self.waiter)

    async def settled(self, timeout_s: float) -> None:
        """Return when there is a result, or after `timeout_s` seconds.

        Each round waits here, and asyncio.timeout is slower.
        """
        loop = asyncio.get_running_loop()
        self.waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _wake, self.waiter)
        try:
            await self.waiter
        finally:
            timer.cancel()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
