"""How long something takes, as a function of a number of tokens: learned from observations, robust to the odd ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import le
from statistics import median

SAMPLES = 32
"""How many observations a number of tokens is remembered by."""
LEVEL_SAMPLES = 15
"""How many observations say how fast everything is now."""
ENOUGH = 3
"""Observations from which a median is worth something: one odd one among them does no harm."""
REFRESH = 8
"""Once there is much behind an n, the shape is computed anew after so many observations: it moves slowly."""
SHORTEST_MS = 1e-3
"""No time is taken to be shorter, so that rates exist."""
SURPRISE = 2.0
"""What an observation of an n that is new counts for at most, in times of what was expected there."""
LEAST = 0.1
"""What was never seen takes at least this fraction of the least that was."""
ORIGIN_WEIGHT = 3.0
"""How many observations the origin is worth where it is known."""
FARTHEST = 1e6
"""How far from 1 the least median may get before level and shape are brought back."""
RIDGE = 1.0
"""Added to the spread of the observed n, so that the line is level while there is only one."""


class TimeCurve:
    """time(n) = level * shape(n). The level follows the load of the machines, for every n at once; the shape is slow.

    The shape at n is between the median of what was observed there and a straight line through the medians of all, the
    nearer to the median the more there is behind it; and it never falls with n. Medians, because a time may be off by
    a factor of ten: the first passes of a process, a neighbour's prefill, a pause of the machine.
    """

    def __init__(self, *, through_origin: bool = False) -> None:
        """`through_origin`: nothing takes no time, which is known beforehand."""
        self._through_origin = through_origin
        self._level = 0.0  # milliseconds
        self._recent: deque[float] = deque(maxlen=LEVEL_SAMPLES)  # levels that the latest observations speak for
        self._samples: dict[int, deque[float]] = {}  # by n, in units of the level at their time
        self._medians: dict[int, float] = {}  # of the samples, when the shape was computed
        self._changed: set[int] = set()  # the n whose samples are others by now
        self._seen = 0
        self._shape: tuple[float, ...] = ()  # for n = 0, 1, ...; empty when it must be computed anew

    def observe(self, n: int, milliseconds: float) -> None:
        """Take in one observation."""
        milliseconds = max(milliseconds, SHORTEST_MS)
        if n not in self._samples:
            self._samples[n] = deque(maxlen=SAMPLES)
        expected = self._shape_up_to(n)[n]
        samples = self._samples[n]
        known = len(samples) >= ENOUGH
        # An n that is new says something of the shape, but nothing yet of the level.
        if known or self._seen < ENOUGH:
            self._recent.append(milliseconds / expected)
            self._level = median(self._recent)
        shape = milliseconds / self._level
        # One odd time must not keep an n from ever being tried again.
        samples.append(shape if known else min(shape, SURPRISE * expected))
        self._changed.add(n)
        self._seen += 1
        if len(samples) < SAMPLES or self._seen % REFRESH == 0:
            self._shape = ()

    def restart(self) -> None:
        """The next observations alone say how fast everything is: the last ones are old."""
        self._recent.clear()

    def count(self, n: int) -> int:
        """How many observations of n are remembered."""
        return len(self._samples.get(n, ()))

    def times(self, longest: int) -> tuple[float, ...]:
        """Milliseconds for n = 0 to `longest`, not falling. All 0 before the first observation."""
        return tuple(self._level * shape for shape in self._shape_up_to(longest)[: longest + 1])

    def _shape_up_to(self, longest: int) -> tuple[float, ...]:
        if len(self._shape) <= longest:
            self._shape = self._compute(longest)
        return self._shape

    def _compute(self, longest: int) -> tuple[float, ...]:
        for n in self._changed:
            self._medians[n] = median(self._samples[n])
        self._changed.clear()
        if not self._medians:
            return (1.0,) * (longest + 1)
        self._bring_back()
        intercept, slope = self._line()
        least = LEAST * min(self._medians.values())
        shape, weights = [], []
        for n in range(longest + 1):
            trust, expected = self.count(n), max(least, intercept + slope * n)
            shape.append((trust * self._medians.get(n, 0.0) + ENOUGH * expected) / (trust + ENOUGH))
            weights.append(float(trust + 1))
        return monotone(shape, weights)

    def _bring_back(self) -> None:
        """Only level times shape is a time: one may drift up and the other down, until there is no number for them."""
        scale = min(self._medians.values())
        if 1.0 / FARTHEST < scale < FARTHEST:
            return
        self._level *= scale
        self._recent = deque((each * scale for each in self._recent), LEVEL_SAMPLES)
        self._medians = {n: each / scale for n, each in self._medians.items()}
        self._samples = {n: deque((each / scale for each in of), SAMPLES) for n, of in self._samples.items()}

    def _line(self) -> tuple[float, float]:
        """Intercept and slope of the least-squares line through the medians, weighted by what is behind them."""
        points = [(float(n), shape, float(self.count(n))) for n, shape in self._medians.items()]
        if self._through_origin:
            points.append((0.0, 0.0, ORIGIN_WEIGHT))
        total = sum(weight for _, _, weight in points)
        middle = sum(n * weight for n, _, weight in points) / total
        height = sum(shape * weight for _, shape, weight in points) / total
        spread = sum((n - middle) ** 2 * weight for n, _, weight in points)
        rise = sum((n - middle) * (shape - height) * weight for n, shape, weight in points)
        slope = max(0.0, rise / (spread + RIDGE))
        return max(0.0, height - slope * middle), slope


def monotone(values: Sequence[float], weights: Sequence[float]) -> tuple[float, ...]:
    """The sequence that never falls and is nearest to `values` in weighted squares (pool adjacent violators)."""
    if all(map(le, values, values[1:])):
        return tuple(values)
    pools: list[tuple[float, float, int]] = []  # value, weight, how many
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            both = before[1] + pool[1]
            pool = ((before[0] * before[1] + pool[0] * pool[1]) / both, both, before[2] + pool[2])
        pools.append(pool)
    return tuple(value for value, _, size in pools for _ in range(size))
