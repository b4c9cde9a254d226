"""What a replica's passes take by their rows, as it measured itself when it started."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

PLACES_PER_DOUBLING = 4
"""Numbers of rows are told apart by so many places for each doubling."""


def place_of(rows: float) -> float:
    """Where a number of rows, at least 1, stands on a scale on which every doubling is as long."""
    return PLACES_PER_DOUBLING * math.log2(rows)


def rows_at(place: float) -> float:
    """The inverse of `place_of`."""
    return float(2.0 ** (place / PLACES_PER_DOUBLING))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds of a pass by the rows in it: one a session and one for each token proposed."""

    rows: tuple[int, ...]  # rising, at least one
    milliseconds: tuple[float, ...]

    def at(self, rows: float) -> float:
        """Straight lines between what was measured, and beyond the last along its line; never less than the first."""
        if len(self.rows) == 1 or rows <= self.rows[0]:
            return self.milliseconds[0]
        place = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        low, high = self.rows[place - 1], self.rows[place]
        before, after = self.milliseconds[place - 1], self.milliseconds[place]
        return max(self.milliseconds[0], before + (after - before) * (rows - low) / (high - low))
