"""The last drafted tokens of a request, and whether too few of those that were tried stood."""

from __future__ import annotations

from collections import deque
from itertools import islice, repeat

MARGIN = 0.06
"""How far above the limit a window is kept, as a fraction: chance alone must not bring it down."""


class AcceptanceWindow:
    """The last `size` drafted tokens. What counts is how many stood of those that were *tried*.

    Of a guess these are the tokens that stood, and the first that fell. What came after that was never tried, and says
    nothing of the drafter. So it is how often a token stands if those before it do. Unlike accepted / drafted, that
    does not fall with the length of the guesses, only where deeper tokens are worse. `bears` and `sustains` say which
    lengths are affordable before it is too late, `too_low` is the verdict.
    """

    def __init__(self, size: int, limit: float) -> None:
        """`size`: drafted tokens, at least 1. `limit`: lowest acceptance, 0 to 1; 0 switches the window off."""
        assert size >= 1
        self._limit = limit
        self._size = size
        self._stood: deque[bool | None] = deque()  # None: not tried
        self._accepted = self._tried = 0  # how many of them

    def add(self, proposed: int, accepted: int, *, fell: bool) -> None:
        """The tokens of one round: of those proposed so many stood, and then one fell, or none did."""
        self._stood.extend(repeat(True, accepted))
        self._stood.extend(repeat(False, fell))
        self._stood.extend(repeat(None, proposed - accepted - fell))
        self._accepted += accepted
        self._tried += accepted + fell
        while len(self._stood) > self._size:
            stood = self._stood.popleft()
            self._accepted -= stood is True
            self._tried -= stood is not None

    def clear(self) -> None:
        """Forget everything."""
        self._stood.clear()
        self._accepted = self._tried = 0

    @property
    def acceptance(self) -> float:
        """Accepted / tried tokens; 0 where nothing was tried."""
        return self._accepted / self._tried if self._tried else 0.0

    @property
    def too_low(self) -> bool:
        """True if the window is full and its acceptance below the limit."""
        return len(self._stood) == self._size and self.acceptance < self._limit

    def bears(self, length: int, tried: float, expected: float, best: float) -> bool:
        """Whether it can be full and above its limit after a guess of `length` tokens.

        So many of those will be tried, and `expected` stand. `best`: the highest acceptance that later guesses can
        have, that of their first token.
        """
        if self._limit <= 0.0:
            return True
        pushed_out = list(islice(self._stood, max(0, len(self._stood) + length - self._size)))
        later = max(0, self._size - len(self._stood) - length)
        stood = self._accepted - sum(each is True for each in pushed_out) + expected + best * later
        judged = self._tried - sum(each is not None for each in pushed_out) + tried + later
        return stood >= min(1.0, self._limit + MARGIN) * judged

    def sustains(self, tried: float, expected: float) -> bool:
        """Whether guesses of which so many are tried, and `expected` stand, can go on for ever above the limit."""
        return self._limit <= 0.0 or expected >= min(1.0, self._limit + MARGIN) * tried
