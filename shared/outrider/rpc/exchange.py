"""One item's reply on a replica stream: awaited, arrived, or what came in its place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from outrider.errors import OutriderError
from outrider.protocol.items import Close, DraftAhead, FailureCode, Key, Open, Propose, Verify
from outrider.rpc.deadlines import Deadlines

VERDICT = "verdict"
VERDICTS = "verdicts"  # of several rounds in one message
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


class Exchange(NamedTuple, Generic[Reply]):
    """A reply, and what it and its request weighed on the wire. A tuple, which is made faster."""

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
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(None)

    async def settled(self, timeout_s: float, deadlines: Deadlines) -> None:
        """Return when there is a result, or after `timeout_s` seconds."""
        self.waiter = asyncio.get_running_loop().create_future()
        waits = deadlines.add(self.waiter, timeout_s)
        try:
            await self.waiter
        finally:
            waits.discard(self.waiter)


@dataclass(slots=True)
class Following:
    """Verdicts of rounds that follow each other by themselves. What comes of one decides where the next one begins."""

    first: int  # base lengths at which they may begin
    last: int
    rounds: int  # so many follow at most
    early: dict[int, Pending] = field(default_factory=dict)  # of rounds that nobody knows of yet
    lost: OutriderError | None = None  # why none comes any more

    def at(self, base_length: int) -> Pending | None:
        """The verdict of the round that begins there, which most likely is none; None: none can begin there."""
        found = self.early.get(base_length)
        if found is None and self.first <= base_length <= self.last and len(self.early) < self.rounds:
            found = self.early[base_length] = Pending(0, VERDICT)
        return found

    def extend(self, last: int, rounds: int) -> None:
        """So many more may follow, the last of which begins there at most."""
        self.last, self.rounds = last, self.rounds + rounds

    def begin(self, base_length: int, most: int) -> Pending:
        """The verdict of the round that did begin there; those after it begin 1 to `most` tokens on."""
        found = self.early.pop(base_length, None) or Pending(0, VERDICT)
        if self.lost is not None:
            found.settle(self.lost)
        self.first, self.last, self.rounds = base_length + 1, base_length + most, self.rounds - 1
        if self.early:
            self.early = {base: each for base, each in self.early.items() if self.first <= base <= self.last}
        return found
