"""Blocks that nobody holds, in the order in which they are given up."""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence


class IdleBlocks:
    """Blocks that no session holds, but whose content may serve again.

    Those without a lease go first, the longest unused before others; then those under a lease, in the same order. A
    lease is a wish, not a claim: it says who goes last, and nobody is refused while an idle block is left.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._plain: OrderedDict[int, None] = OrderedDict()  # longest unused first
        self._leased: OrderedDict[int, None] = OrderedDict()
        self._until: dict[int, float] = {}  # ends of leases, of held blocks too
        self._ends: list[tuple[float, tuple[int, ...]]] = []  # heap: the blocks of each lease in their session's order
        self._noted = 0  # blocks in all of them

    def __len__(self) -> int:
        return len(self._plain) + len(self._leased)

    @property
    def leased(self) -> int:
        """How many are under a lease."""
        self._expire()
        return len(self._leased)

    def lease(self, blocks: Sequence[int], seconds: float) -> None:
        """Let these, held or idle, be given up last for so long; given in their session's order."""
        self._expire()
        until = self._clock() + seconds
        for block in blocks:
            self._until[block] = max(until, self._until.get(block, until))
            if block in self._plain:
                del self._plain[block]
                self._leased[block] = None
        heapq.heappush(self._ends, (until, tuple(blocks)))
        self._noted += len(blocks)
        if self._noted > 2 * len(self._until) + 64:
            self._forget_renewed()

    def add(self, block: int) -> None:
        """Nobody holds it any more; it is the most recently used."""
        (self._leased if block in self._until else self._plain)[block] = None

    def remove(self, block: int) -> None:
        """Somebody holds it again; does nothing if it is not here."""
        self._plain.pop(block, None)
        self._leased.pop(block, None)

    def forget(self, block: int) -> None:
        """Its content is gone, and so is its lease."""
        self.remove(block)
        self._until.pop(block, None)

    def first(self) -> int:
        """The one to give up now."""
        self._expire()
        return next(iter(self._plain or self._leased))

    def _expire(self) -> None:
        """End the leases whose time is up. Their blocks were unused for so long that they go before all others."""
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, blocks = heapq.heappop(self._ends)
            self._noted -= len(blocks)
            for block in blocks:
                if self._until.get(block, now + 1) > now:
                    continue  # renewed, or given up meanwhile
                del self._until[block]
                if block in self._leased:
                    del self._leased[block]
                    self._plain[block] = None
                    self._plain.move_to_end(block, last=False)  # a tail before its head

    def _forget_renewed(self) -> None:
        """Drop what a lease says of blocks that a later one covers: a long conversation renews its first ones often."""
        current = [(until, tuple(b for b in blocks if self._until.get(b) == until)) for until, blocks in self._ends]
        self._ends = [(until, blocks) for until, blocks in current if blocks]
        heapq.heapify(self._ends)
        self._noted = sum(len(blocks) for _, blocks in self._ends)
