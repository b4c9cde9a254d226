"""How long rounds take whose proposals were drafted ahead, by how many tokens each has."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import fmean, median

from outrider.acceptance.curve import ENOUGH, SHORTEST_MS, monotone

RECENT = 24
"""Rounds of a length that it is remembered by."""
REMEMBERED = 256
"""Rounds of other lengths after which one is forgotten: what it took is not what it takes."""


class AheadTimes:
    """Of all sessions of a coordinator.

    As long as verifying hides the draft, a round is no longer for more tokens, and then by what they take. So there is
    no shape that all lengths have in common, and each counts for itself; one that was not seen takes more or less than
    the nearest that was, by the draft's own time for the difference. Means count, not medians: the sessions of a
    verifier that are not in step wait for the pass of others, or do not, and its rounds take one pass or two.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._typical: dict[int, float] = {}
        self._last: dict[int, int] = {}
        self._rounds = 0
        self._misses: deque[float] = deque(maxlen=RECENT)
        self.miss_ms: float | None = None
        """What a round takes more whose outcome was not foreseen. None while such were seen too seldom."""

    def observe(self, drafted: int, milliseconds: float) -> None:
        """From verdict to verdict, with so many tokens for each outcome."""
        recent = self._recent.setdefault(drafted, deque(maxlen=RECENT))
        recent.append(max(milliseconds, SHORTEST_MS))
        self._typical[drafted] = typical(recent)
        self._rounds += 1
        self._last[drafted] = self._rounds
        for length in [each for each, last in self._last.items() if self._rounds - last > REMEMBERED]:
            del self._recent[length], self._last[length], self._typical[length]

    def observe_miss(self, drafted: int, milliseconds: float) -> None:
        """The same where the outcome was not among those that were drafted ahead for, and a fresh guess was made."""
        if drafted in self._typical:
            self._misses.append(max(0.0, milliseconds - self._typical[drafted]))
            self.miss_ms = typical(self._misses) if len(self._misses) >= ENOUGH else None

    def restart(self) -> None:
        """What was seen is old."""
        self._recent.clear()
        self._typical.clear()
        self._last.clear()

    def times(self, longest: int, draft_ms: Sequence[float]) -> tuple[float, ...]:
        """Milliseconds for 0 to `longest` tokens, not falling. All 0 before the first observation.

        `draft_ms` [longest + 1]: what drafting takes.
        """
        if not self._recent:
            return (0.0,) * (longest + 1)

        def drafting(length: int) -> float:
            return draft_ms[length] if length <= longest else draft_ms[longest] * length / max(longest, 1)

        values, weights = [], []
        for length in range(longest + 1):
            near = min(self._typical, key=lambda each: (abs(each - length), each))
            values.append(max(SHORTEST_MS, self._typical[near] + drafting(length) - drafting(near)))
            weights.append(float(len(self._recent.get(length, ())) or 0.5))
        return monotone(values, weights)


def typical(recent: Sequence[float]) -> float:
    """What a round takes on average. Of one or two the shorter: the length is to be tried again.

    The longest third counts as what is just below it, and nothing for more than twice the median: rounds take one pass
    or two, and what takes longer met a prompt, the draft's or the target's, or a pause of the machine.
    """
    if len(recent) < ENOUGH:
        return min(recent)
    ordered = sorted(recent)
    most = min(ordered[-1 - len(recent) // 3], 2.0 * median(ordered))
    return fmean([min(each, most) for each in recent])
