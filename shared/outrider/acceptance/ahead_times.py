"""How long rounds take whose proposals were drafted ahead, by how many tokens each has."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from outrider.acceptance.curve import ENOUGH, SHORTEST_MS, monotone

RECENT = 7
"""Rounds of a length that it is remembered by."""
REMEMBERED = 256
"""Rounds of other lengths after which one is forgotten: what it took is not what it takes."""


class AheadTimes:
    """Of all sessions of a coordinator.

    As long as verifying hides the draft, a round is no longer for more tokens, and then by what they take. So there is
    no shape that all lengths have in common, and each counts for itself; one that was not seen takes more or less than
    the nearest that was, by the draft's own time for the difference.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._last: dict[int, int] = {}
        self._rounds = 0

    def observe(self, drafted: int, milliseconds: float) -> None:
        """From verdict to verdict, with so many tokens for each outcome."""
        self._recent.setdefault(drafted, deque(maxlen=RECENT)).append(max(milliseconds, SHORTEST_MS))
        self._rounds += 1
        self._last[drafted] = self._rounds
        for length in [each for each, last in self._last.items() if self._rounds - last > REMEMBERED]:
            del self._recent[length], self._last[length]

    def restart(self) -> None:
        """What was seen is old."""
        self._recent.clear()
        self._last.clear()

    def times(self, longest: int, draft_ms: Sequence[float]) -> tuple[float, ...]:
        """Milliseconds for 0 to `longest` tokens, not falling. All 0 before the first observation.

        `draft_ms` [longest + 1]: what drafting takes.
        """
        if not self._recent:
            return (0.0,) * (longest + 1)
        # Of one or two the shorter: an odd one must not keep a length from being tried again.
        known = {
            length: median(recent) if len(recent) >= ENOUGH else min(recent) for length, recent in self._recent.items()
        }

        def drafting(length: int) -> float:
            return draft_ms[length] if length <= longest else draft_ms[longest] * length / max(longest, 1)

        values, weights = [], []
        for length in range(longest + 1):
            near = min(known, key=lambda each: (abs(each - length), each))
            values.append(max(SHORTEST_MS, known[near] + drafting(length) - drafting(near)))
            weights.append(float(len(self._recent.get(length, ())) or 0.5))
        return monotone(values, weights)
