"""What a replica's passes take by their rows and sessions, as it measured itself when it started."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
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
    each: int = 1
    """Rows of a session in these passes, if there were so many."""
    apart: StepTimes | None = None
    """The same where every row is another session's, if that was measured too."""
    plain: StepTimes | None = None
    """Of plain rounds of as many sessions as rows that follow each other by themselves, if that was measured too: the
    next pass may begin before the host knows what the last one drew."""
    further: StepTimes | None = None
    """Of a draft: what every token of the guesses after the first takes, if that was measured too."""

    def drafting(self, tokens: int, sessions: float) -> float:
        """Milliseconds of a draft for guesses of so many tokens for so many sessions."""
        first = self.at(sessions)
        return first + (tokens - 1) * (first if self.further is None else self.further.at(sessions))

    def at(self, rows: float, sessions: float | None = None) -> float:
        """Milliseconds with so many rows of so many sessions; None: of as few as there were when it was measured.

        Straight lines between what was measured, and beyond the last along the line from half as many; never less than
        the first.
        What sessions cost beside their rows is told by passes in which every row is another session's: it grows with
        their number, along a line from the passes with few.
        """
        if self.plain is not None and sessions is not None and rows <= sessions:
            return self.plain.at(rows)
        time = max(self.milliseconds[0], on_line(self.rows, self.milliseconds, rows))
        fewest = max(1.0, rows / self.each)
        if self.apart is None or sessions is None or rows <= fewest:
            return time
        more = min(max((sessions - fewest) / (rows - fewest), 0.0), 1.0)
        return max(self.milliseconds[0], time + more * self._beside(self.apart, rows))

    def _beside(self, apart: StepTimes, rows: float) -> float:
        """What it takes more if every row is another session's; beyond what was measured in proportion to the rows."""
        last = apart.rows[-1]
        within = min(rows, last)
        return (apart.at(within) - on_line(self.rows, self.milliseconds, within)) * rows / within


def on_line(rows: Sequence[int], milliseconds: Sequence[float], wanted: float) -> float:
    """Straight lines between the points, and beyond the last along the line from half as far.

    (The last ones may be two ends of a step, between which nothing grows.)
    """
    if len(rows) == 1 or wanted <= rows[0]:
        return milliseconds[0]
    place = min(bisect_left(rows, wanted), len(rows) - 1)
    low, high = rows[place - 1], rows[place]
    before, after = milliseconds[place - 1], milliseconds[place]
    if wanted > high:
        low = max(rows[0], high // 2)
        before = on_line(rows, milliseconds, low)
    return before + (after - before) * (wanted - low) / (high - low)
