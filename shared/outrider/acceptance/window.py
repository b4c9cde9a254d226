"""The last drafted tokens of a request, and whether too few of them stood."""

from __future__ import annotations

from collections import deque
from itertools import islice

MARGIN = 0.06
"""How far above the limit a window is kept, as a fraction: chance alone must not bring it down."""


class AcceptanceWindow:
    """The last `size` drafted tokens. Acceptance is accepted / drafted, as everywhere.

    It falls with the length of the guesses, because a token that falls takes those after it along. So the window has
    these uses: `bears` and `sustains` say which lengths are affordable before it is too late, `too_low` is the verdict.
    """

    def __init__(self, size: int, limit: float) -> None:
        """`size`: drafted tokens, at least 1. `limit`: lowest acceptance, 0 to 1; 0 switches the window off."""
        assert size >= 1
        self._limit = limit
        self._size = size
        self._stood: deque[bool] = deque()
        self._accepted = 0  # how many of them

    def add(self, proposed: int, accepted: int) -> None:
        """The tokens of one round."""
        self._stood.extend(index < accepted for index in range(proposed))
        self._accepted += accepted
        while len(self._stood) > self._size:
            self._accepted -= self._stood.popleft()

    def clear(self) -> None:
        """Forget everything."""
        self._stood.clear()
        self._accepted = 0

    @property
    def acceptance(self) -> float:
        """Accepted / drafted tokens; 0 where nothing was drafted."""
        return self._accepted / len(self._stood) if self._stood else 0.0

    @property
    def too_low(self) -> bool:
        """True if the window is full and its acceptance below the limit."""
        return len(self._stood) == self._size and self.acceptance < self._limit

    def bears(self, length: int, expected: float, best: float) -> bool:
        """Whether a guess of `length` tokens, of which `expected` will stand, still leaves a full window at its limit.

        `best`: the highest acceptance that later guesses can have, that of their first token.
        """
        if self._limit <= 0.0:
            return True
        pushed_out = max(0, len(self._stood) + length - self._size)
        stood = self._accepted - sum(islice(self._stood, pushed_out))
        later = max(0, self._size - len(self._stood) - length)
        return stood + expected + best * later >= min(1.0, self._limit + MARGIN) * self._size

    def sustains(self, length: int, expected: float) -> bool:
        """Whether guesses of `length` tokens, of which `expected` stand, can go on for ever above the limit."""
        return self._limit <= 0.0 or expected >= min(1.0, self._limit + MARGIN) * length
