"""What a proposed token must bring, so that the sessions that share a verifier's steps commit the most tokens together.

A session that looks at its own times alone takes every node that a step seems to give for nothing, and so do its
neighbours, until the step is slow for all. So the nodes of a step are one budget. Which nodes get into it is decided as
in `shape.spread`, in the order of their gains; how many, by how long rounds take with as many tokens in flight. What
comes of it is a price: the gain that a node must exceed. Every session takes the nodes above it, which is its share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, islice
from statistics import median
from typing import Protocol

from outrider.acceptance.costs import RoundCosts
from outrider.acceptance.curve import ENOUGH, monotone
from outrider.acceptance.shape import Gains, gains_in_order
from outrider.acceptance.step_times import place_of

SAMPLES = 32
"""How many rounds a number of rows in flight is remembered by."""
MOST_ASKED = 32
"""How many sessions, each time others, stand for all of them when the price is computed."""
SHORTEST_WAIT = 16
"""Fewest rounds between two computations; otherwise there is one after as many rounds as there are sessions."""
SHORT_MEMORY = 8
"""How many rounds say how many sessions share a pass."""
POINTS = 64
"""How many budgets are compared."""
SMOOTHING = 0.5
"""How much of a new price replaces the one before it."""


ALONE = 1.5
"""Fewer sessions in a pass, on average, share nothing."""


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
        place = round(place_of(rows))
        if place not in self._samples:
            self._samples[place] = deque(maxlen=SAMPLES)
        self._samples[place].append((rows, milliseconds))

    def points(self) -> list[tuple[float, float]]:
        """Rows and milliseconds, in order, of what was seen often enough."""
        seen = [samples for _, samples in sorted(self._samples.items()) if len(samples) >= ENOUGH]
        times = [median(milliseconds for _, milliseconds in samples) for samples in seen]
        rows = [median(rows for rows, _ in samples) for samples in seen]
        return list(zip(rows, monotone(times, [float(len(samples)) for samples in seen]), strict=True))


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

    def __init__(self, costs: RoundCosts | None = None) -> None:
        """`costs`: what rounds take, if replicas tell; else it is learned from what is seen alone."""
        self._costs = costs
        self._price = 0.0
        self._times = RowTimes()
        self._sessions: dict[Session, None] = {}  # in the order in which they are asked
        self._begun: set[Session] = set()  # those that have had a round
        self._per_own = 0.0  # sessions of a pass for each of ours that have begun, on average; 0: nobody has said so
        self._other_ms = 0.0
        self._rounds = 0

    @property
    def together(self) -> float:
        """Sessions that share a pass, those of other coordinators too; all that take part, until rounds say more.

        Who is still reading a prompt will share it soon: where many come at once, what pays for the first few of them
        does not for all. Other coordinators are taken to be as far as this one, and to have as many for each of ours as
        they had when a round said so last, be it to sessions that have left.
        """
        return (self._per_own or 1.0) * len(self._sessions)

    @property
    def own(self) -> int:
        """Sessions that take part: those of this coordinator."""
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
        self._sessions[session] = None

    def leave(self, session: Session) -> None:
        """No longer."""
        self._sessions.pop(session, None)
        self._begun.discard(session)

    def record(
        self, session: Session, rows: int, sessions: int, verify_ms: float | None, other_ms: float | None
    ) -> None:
        """A round of a session in a pass of so many rows and sessions, those of other coordinators too.

        Times are None where they say nothing of other rounds.
        """
        if session in self._sessions:
            self._begun.add(session)
        if sessions and self._begun:
            per_own = sessions / len(self._begun)
            self._per_own += (per_own - self._per_own) / SHORT_MEMORY if self._per_own else per_own
        if verify_ms is not None and rows:
            self._times.observe(rows, verify_ms)
        if other_ms is not None:
            self._other_ms += (other_ms - self._other_ms) / SAMPLES
        self._rounds += 1

    def _new_price(self) -> float:
        together = self.together
        points = (self._costs and self._costs.by_rows()) or self._times.points()
        if not self._sessions or together < ALONE or len(points) < 2:
            return 0.0  # one alone knows its own times best
        asked = list(islice(self._sessions, MOST_ASKED))
        for session in asked if len(asked) < len(self._sessions) else ():
            self._sessions[session] = self._sessions.pop(session)  # to the end: others come before it next time
        demands = [session.demand() for session in asked]
        return best_price(points, demands, stand_for=together / len(asked), other_ms=self._other_ms)
