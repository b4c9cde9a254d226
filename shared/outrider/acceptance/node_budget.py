"""What a proposed token must bring, so that the sessions that share a verifier's steps commit the most tokens together.

A session that looks at its own times alone takes every node that a step seems to give for nothing, and so do its
neighbours, until the step is slow for all. So the nodes of a step are one budget. Which nodes get into it is decided as
in `shape.spread`, in the order of their gains; how many, by how long rounds take with as many tokens in flight. What
comes of it is a price: the gain that a node must exceed. Every session takes the nodes above it, which is its share.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from statistics import median
from typing import Protocol

from outrider.acceptance.curve import ENOUGH, monotone
from outrider.acceptance.shape import Gains, gains_in_order

SAMPLES = 32
"""How many rounds a number of rows in flight is remembered by."""
STEPS_PER_DOUBLING = 4
"""Numbers of rows are told apart by so many steps for each doubling."""
MOST_ASKED = 32
"""How many sessions, each time others, stand for all of them when the price is computed."""
SHORTEST_WAIT = 16
"""Fewest rounds between two computations; otherwise there is one after as many rounds as there are sessions."""
MOST_PEAKS = 2048
"""How many falling numbers of rows in flight are remembered."""
POINTS = 64
"""How many budgets are compared."""
SMOOTHING = 0.5
"""How much of a new price replaces the one before it."""


class Session(Protocol):
    """One that takes part."""

    def demand(self) -> Gains:
        """What its proposal could have at most."""


class RowTimes:
    """Milliseconds of a round by the rows in flight, proposed tokens and one more a session: medians, never falling."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[int, float]]] = {}

    def observe(self, rows: int, milliseconds: float) -> None:
        """A round that ran beside others, `rows` in all."""
        place = round(STEPS_PER_DOUBLING * math.log2(rows))
        if place not in self._samples:
            self._samples[place] = deque(maxlen=SAMPLES)
        self._samples[place].append((rows, milliseconds))

    def points(self) -> list[tuple[float, float]]:
        """Rows and milliseconds, in order, of what was seen often enough."""
        seen = [samples for _, samples in sorted(self._samples.items()) if len(samples) >= ENOUGH]
        times = [median(milliseconds for _, milliseconds in samples) for samples in seen]
        rows = [median(rows for rows, _ in samples) for samples in seen]
        return list(zip(rows, monotone(times, [float(len(samples)) for samples in seen]), strict=True))


@dataclass(frozen=True, slots=True)
class InFlight:
    """The most that was in flight at once while a round ran, of all sessions together."""

    rows: int  # proposed tokens and one more a session
    depth: int  # of the deepest proposal


NOTHING = InFlight(0, 0)


class Peaks:
    """The most of something that was in flight since some moment."""

    def __init__(self) -> None:
        self._moments: list[int] = []  # of the numbers below, which fall
        self._most: list[int] = []
        self._now = 0

    def add(self, count: int) -> int:
        """So many are in flight from now on; names the moment."""
        while self._most and self._most[-1] <= count:
            self._most.pop()
            self._moments.pop()
        self._now += 1
        self._most.append(count)
        self._moments.append(self._now)
        if len(self._most) > MOST_PEAKS:
            del self._most[: MOST_PEAKS // 2], self._moments[: MOST_PEAKS // 2]
        return self._now

    def since(self, moment: int) -> int:
        """From this moment on."""
        return self._most[min(bisect_left(self._moments, moment), len(self._most) - 1)]


def time_at(points: Sequence[tuple[float, float]], rows: float) -> float:
    """Milliseconds at so many rows: straight lines between the points, and beyond the last one on along its line."""
    place = bisect_left(points, (rows, 0.0))
    if place == 0 or len(points) == 1:
        return points[0][1]
    (low, before), (high, after) = points[min(place, len(points) - 1) - 1 : min(place, len(points) - 1) + 1]
    return before + (after - before) * (rows - low) / (high - low)


def best_price(
    points: Sequence[tuple[float, float]], sessions: Sequence[Gains], *, stand_for: float, other_ms: float
) -> float:
    """The gain that a node must exceed: that of the first one left out of the budget with which most is committed.

    Each of the `sessions` stands for so many. `points`: see `RowTimes`; `other_ms`: what a round takes beside that.
    """
    order = gains_in_order(sessions)
    count = stand_for * len(sessions)
    tokens = (0.0, *accumulate(order))

    def rate(nodes: int) -> float:
        more = stand_for * tokens[nodes]
        return (count + more) / (time_at(points, count + stand_for * nodes) + other_ms)

    candidates = {len(order) * point // POINTS for point in range(POINTS + 1)}
    best = max(sorted(candidates), key=rate)
    return order[best] if best < len(order) else 0.0


class NodeBudget:
    """One for all sessions of a coordinator."""

    def __init__(self) -> None:
        self._price = 0.0
        self._times = RowTimes()
        self._sessions: dict[Session, InFlight] = {}  # what they have in flight
        self._rows = 0
        self._depths: Counter[int] = Counter()  # how many proposals in flight have each
        self._row_peaks, self._depth_peaks = Peaks(), Peaks()
        self._other_ms = 0.0
        self._rounds = 0

    def __len__(self) -> int:
        """Sessions that take part."""
        return len(self._sessions)

    @property
    def price(self) -> float:
        """The gain, in tokens, that a node must exceed. It is computed anew when it is asked for, and not each time."""
        if self._rounds >= max(SHORTEST_WAIT, len(self._sessions)):
            self._rounds = 0
            self._price += SMOOTHING * (self._new_price() - self._price)
        return self._price

    def join(self, session: Session) -> None:
        """Take part."""
        self._sessions[session] = NOTHING

    def leave(self, session: Session) -> None:
        """No longer; what was in flight is gone."""
        if session in self._sessions:
            self._change(session, NOTHING)
            del self._sessions[session]

    def begin(self, session: Session, nodes: int, depth: int) -> int:
        """A round with so many proposed tokens, so deep, is on its way; the moment, for `end`."""
        self._change(session, InFlight(1 + nodes, depth))
        self._depth_peaks.add(max(self._depths, default=0))
        return self._row_peaks.add(self._rows)

    def end(self, session: Session, began: int, verify_ms: float | None, other_ms: float | None) -> InFlight:
        """The round that began at that moment has ended; what was in flight meanwhile, nothing if it never began.

        Times are None where they say nothing of other rounds.
        """
        meanwhile = NOTHING
        if self._sessions[session].rows:
            meanwhile = InFlight(self._row_peaks.since(began), self._depth_peaks.since(began))
            if verify_ms is not None:
                self._times.observe(meanwhile.rows, verify_ms)
        if other_ms is not None:
            self._other_ms += (other_ms - self._other_ms) / SAMPLES
        self._change(session, NOTHING)
        self._rounds += 1
        return meanwhile

    def _change(self, session: Session, now: InFlight) -> None:
        before, self._sessions[session] = self._sessions[session], now
        self._rows += now.rows - before.rows
        for depth, more in ((before.depth, -1), (now.depth, 1)):
            if depth:
                self._depths[depth] += more
                if not self._depths[depth]:
                    del self._depths[depth]

    def _new_price(self) -> float:
        points = self._times.points()
        if len(self._sessions) < 2 or len(points) < 2:
            return 0.0  # one alone knows its own times best
        asked = list(islice(self._sessions, MOST_ASKED))
        for session in asked if len(asked) < len(self._sessions) else ():
            self._sessions[session] = self._sessions.pop(session)  # to the end: others come before it next time
        demands = [session.demand() for session in asked]
        return best_price(points, demands, stand_for=len(self._sessions) / len(asked), other_ms=self._other_ms)
