"""KV on the verifiers, as this coordinator's sessions share it: who waits for room, and who gives way."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass

from outrider.errors import ResourceExhausted
from outrider.telemetry import metrics
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

POLL_S = 1.0
"""The next in turn tries again after so many seconds: another coordinator's session may have ended."""


@dataclass(slots=True)
class _Guest:
    """A session that is open on a verifier."""

    client: str
    tokens: int
    gives_way: bool = False


class Room:
    """Sessions that a verifier has no KV for wait here; the turn is the client's whose sessions hold the least.

    Where one client's sessions hold so much more than another's that they would still hold as much after it, the
    newest of them gives way: it leaves its verifier between two rounds, and comes back from its committed tokens.
    """

    def __init__(self) -> None:
        self._guests: dict[int, _Guest] = {}  # by session, the newest last
        self._held: Counter[str] = Counter()  # KV tokens by client, without those of sessions that give way
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """How many sessions wait."""
        return sum(map(len, self._queues.values()))

    def enter(self, session: int, client: str, tokens: int) -> None:
        """A session was opened on a verifier that keeps KV for `tokens`; there may be more room than that."""
        self._guests[session] = _Guest(client, tokens)
        self._held[client] += tokens
        self._wake()

    def leave(self, session: int) -> None:
        """A session is not open any more; does nothing if it was not."""
        guest = self._guests.pop(session, None)
        if guest is None:
            return
        if not guest.gives_way:
            self._hold_less(guest)
        self._wake()

    def gives_way(self, session: int) -> bool:
        """Whether a session is to leave its verifier before its next round."""
        guest = self._guests.get(session)
        return guest is not None and guest.gives_way

    async def wait(self, client: str, tokens: int, deadline: float, *, refused: bool) -> None:
        """Return when it is this session's turn to try. Raise ResourceExhausted at `deadline` (time.monotonic seconds).

        `refused`: no verifier had room for it a moment ago.
        """
        if refused:
            self._ask_to_give_way(client, tokens)
        turn = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(client, deque())
        if refused:
            queue.appendleft(turn)
        else:
            queue.append(turn)
        try:
            while not turn.done():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ResourceExhausted(f"no verifier has KV for {tokens} tokens, and {self.waiting} requests wait")
                await asyncio.wait([turn], timeout=min(left, POLL_S))
                if self._next() is turn:
                    return
        finally:
            queue.remove(turn)
            if not queue:
                del self._queues[client]

    def _next(self) -> asyncio.Future[None] | None:
        if not self._queues:
            return None
        return self._queues[min(self._queues, key=lambda client: self._held[client])][0]

    def _wake(self) -> None:
        turn = self._next()
        if turn is not None and not turn.done():
            turn.set_result(None)

    def _ask_to_give_way(self, client: str, tokens: int) -> None:
        for number, guest in reversed(self._guests.items()):
            fewest = self._held[client] + tokens
            if not guest.gives_way and guest.client != client and self._held[guest.client] - guest.tokens >= fewest:
                log.info("session %d gives way: its client holds KV for %d tokens", number, self._held[guest.client])
                metrics.preemptions.add(1)
                guest.gives_way = True
                self._hold_less(guest)
                return

    def _hold_less(self, guest: _Guest) -> None:
        self._held[guest.client] -= guest.tokens
        if not self._held[guest.client]:
            del self._held[guest.client]
