"""How long something takes, where it is known beforehand about how long it should."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

from outrider.acceptance.curve import ENOUGH, REFRESH, SAMPLES, SHORTEST_MS, monotone

REMEMBERED = 256
"""Observations after which one counts no more: what was seen then says nothing of how things are now."""
REACH = 0.7
"""What an observation says of the next n, as a fraction of what it says of its own; and so on from n to n."""
LEAST = 0.25
"""Nothing takes less than this fraction of what is expected."""


class ExpectedCurve:
    """time(n) = expected(n) + rest(n).

    The rest is what is seen beyond what is expected: at n itself the median of what was observed there, the more of it
    the more there is, and elsewhere what was seen near by: what a round takes beside its pass (the host, the network,
    the clients). Of what was never seen the best is hoped, so that it is tried: above what was seen the rest is taken
    to stay the same, below it to shrink as the expectation does.
    """

    def __init__(self, expected: Callable[[int], float]) -> None:
        """`expected`: milliseconds at n = 0, 1, ..., not falling."""
        self._expected = expected
        self._samples: dict[int, deque[tuple[int, float]]] = {}  # by n: when, and how many milliseconds
        self._seen = 0
        self._times: tuple[float, ...] = ()  # for n = 0, 1, ...; empty when they must be computed anew

    def observe(self, n: int, milliseconds: float) -> None:
        """Take in one observation."""
        samples = self._samples.setdefault(n, deque(maxlen=SAMPLES))
        samples.append((self._seen, milliseconds))
        self._seen += 1
        if len(samples) < SAMPLES or self._seen % REFRESH == 0:
            self._times = ()

    def times(self, longest: int) -> tuple[float, ...]:
        """Milliseconds for n = 0 to `longest`, not falling."""
        if len(self._times) <= longest:
            self._times = self._compute(longest)
        return self._times[: longest + 1]

    def _compute(self, longest: int) -> tuple[float, ...]:
        rests = self._rests()
        times, weights = [], []
        for n in range(longest + 1):
            expected = self._expected(n)
            near = [
                (count * REACH ** abs(n - other), rest * min(1.0, expected / self._expected(other)))
                for other, (count, rest) in rests.items()
            ]
            weight = sum(share for share, _ in near)
            beside = sum(share * rest for share, rest in near) / weight if weight else 0.0
            trust, own = rests.get(n, (0, 0.0))
            rest = (trust * own + ENOUGH * beside) / (trust + ENOUGH)
            times.append(max(expected + rest, LEAST * expected, SHORTEST_MS))
            weights.append(float(trust + 1))
        return monotone(times, weights)

    def _rests(self) -> dict[int, tuple[int, float]]:
        """By n: how much was observed there lately, and by how much the median exceeds what is expected."""
        oldest = self._seen - REMEMBERED
        found = {}
        for n, samples in self._samples.items():
            while samples and samples[0][0] < oldest:
                samples.popleft()
            if samples:
                found[n] = len(samples), median(milliseconds for _, milliseconds in samples) - self._expected(n)
        return found
