"""How much longer things take than expected: learned where they are seen, and believed elsewhere until they are."""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low

from outrider.acceptance.curve import ENOUGH
from outrider.acceptance.step_times import place_of, rows_at

SAMPLES = 32
"""How many observations a cell is remembered by."""
SPACING = 0.9
"""Passes between two observations of one cell: all sessions of a pass see the same one."""
FEWEST = 2
"""Observations that a cell begins to count with: in a single pass anything may have happened beside."""
REMEMBERED = 512.0
"""Passes after which an observation counts no more: what was seen then says nothing of how things are now."""
LOADS_PER_DOUBLING = 2
"""Numbers of sessions are told apart by so many cells for each doubling."""
REACH = 0.7
"""What an observation says of the next cell, as a fraction of what it says of its own; and so on from cell to cell."""
WHOLE = round(place_of(2))
"""Where rounds stand in which every session has a guess."""
MIXED = 2
"""Where enough of them have one to tell what it is like if all do: what it takes more grows with their number."""
FARTHEST = 12
"""Cells away from which all count alike: so little that only their number matters."""
LEAST, MOST = 0.05, 100.0
"""No factor is taken to be beyond these."""

Cell = tuple[int, int]
"""The number of sessions, and the size of what each of them has: tokens of a guess, rows of a round."""


def cell_of(sessions: float, size: float) -> Cell:
    """Both on scales on which every doubling is as long."""
    return round(LOADS_PER_DOUBLING * math.log2(max(sessions, 1.0))), round(place_of(max(size, 1.0)))


class Factors:
    """time / expected time, by the sessions that share a pass and the size of what each has.

    In a cell it is the lower median of what was observed there, the more of it the more there is, and else what was
    observed near by, which is all there is where nothing was: so all times move together when the host, the network or
    the contexts make everything slower than it was when the expectation was measured. Only, what the next size takes
    more than expected is hoped to be no more milliseconds than at the size below it, so that it is tried; and what
    guesses take more, no more than what plain rounds do, in which a device waits sooner for its host.
    """

    def __init__(self) -> None:
        self._samples: dict[Cell, deque[tuple[float, float]]] = {}  # when, and the factor
        self._expected: dict[Cell, float] = {}  # milliseconds
        self._known: list[tuple[Cell, float, float]] | None = None  # cell, how much is known, median
        self._computed = -math.inf  # when that was
        self.version = 0
        """Another number once factors may have changed."""

    def observe(self, now: float, cell: Cell, milliseconds: float, expected: float) -> None:
        """Take in one observation; `now` is counted in passes."""
        samples = self._samples.setdefault(cell, deque(maxlen=SAMPLES))
        if samples and now - samples[-1][0] < SPACING:
            return
        samples.append((now, min(max(milliseconds / expected, LEAST), MOST)))
        self._expected[cell] = expected
        if len(samples) <= ENOUGH or now - self._computed >= 1.0:
            self._known, self._computed = None, now
            self.version += 1

    def seen(self, now: float, cell: Cell) -> bool:
        """Whether it was observed there often enough, and not too long ago."""
        samples = self._samples.get(cell)
        return samples is not None and len(samples) >= ENOUGH and now - samples[-ENOUGH][0] < REMEMBERED

    def seen_beyond(self, now: float, load: int, size: int) -> bool:
        """Whether any cell of the load with at least that size was `seen`."""
        return any(cell[0] == load and cell[1] >= size and self.seen(now, cell) for cell in self._samples)

    def at(self, now: float, cell: Cell, expected: float) -> float:
        """What the expected time is to be multiplied by."""
        if self._known is None:
            self._known = self._compute(now)
        plain = next((factor for other, _, factor in self._known if other == (cell[0], 0)), None)
        trust = own = weight = total = 0.0
        for other, count, seen in self._known:
            factor = seen
            apart = abs(cell[0] - other[0]) + abs(cell[1] - other[1])
            if not apart:
                trust, own = count, factor
            elif cell[0] == other[0] and factor > 1.0 and _may_cost_no_more(cell[1], other[1]):
                factor = 1.0 + (factor - 1.0) * min(1.0, self._expected[other] / expected)
            elif plain is not None and cell[0] == other[0] and MIXED <= other[1] < WHOLE <= cell[1] and factor > plain:
                more = (factor - plain) / (rows_at(other[1]) - 1.0)
                factor = min(MOST, plain + more * min(1.0, self._expected[other] / expected))
            share = count * REACH ** min(apart, FARTHEST)
            weight += share
            total += share * factor
        if not weight:
            return 1.0
        return (trust * own + total / weight) / (trust + 1.0)

    def _compute(self, now: float) -> list[tuple[Cell, float, float]]:
        found = []
        for cell, samples in list(self._samples.items()):
            while samples and now - samples[0][0] > REMEMBERED:
                samples.popleft()
            if len(samples) >= FEWEST:
                found.append((cell, float(len(samples)), median_low(factor for _, factor in samples)))
            elif not samples:
                del self._samples[cell]
        return found


def _may_cost_no_more(size: int, other: int) -> bool:
    """Whether what a size takes more than expected may be no more milliseconds than what another one does."""
    return size >= WHOLE and (other == 0 or size > other >= WHOLE)
