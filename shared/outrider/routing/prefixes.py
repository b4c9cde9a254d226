"""Which replica has lately computed which beginning of a text: what its prefix cache probably still holds.

Replicas do not tell; a coordinator remembers what it opened where. It may be wrong either way (another coordinator's
sessions, evictions), and that costs speed only: the replica itself finds out what it holds.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

STEP = 64
"""Tokens between two beginnings that are told apart."""

CAPACITY = 65_536
"""Beginnings that are remembered, over all replicas; longest unused ones are forgotten."""


def beginnings(tokens: Sequence[int], salt: str) -> list[bytes]:
    """A digest of the first `STEP` tokens, of the first 2 `STEP`, and so on; short of the last token.

    Texts of different salts (tenants) share none: they do not share KV either.
    """
    digest = hashlib.blake2b(salt.encode(), digest_size=16)
    found = []
    for start in range(0, max(len(tokens) - 1, 0) // STEP * STEP, STEP):
        digest.update(array("q", tokens[start : start + STEP]).tobytes())
        found.append(digest.digest())
    return found


class PrefixMemory:
    """The beginnings of what was opened, by replica. A replica's name changes when it restarts."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._known: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def remember(self, replica: str, found: Sequence[bytes]) -> None:
        """A text with these beginnings was opened there. Of a text the longest are forgotten first."""
        for digest in reversed(found):
            self._known[replica, digest] = None
            self._known.move_to_end((replica, digest))
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def cached_tokens(self, replica: str, found: Sequence[bytes]) -> int:
        """How many tokens of a text with these beginnings the replica probably holds."""
        for count, digest in enumerate(found):
            if (replica, digest) not in self._known:
                return count * STEP
        return len(found) * STEP
