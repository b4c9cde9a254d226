"""Sessions in step on one simulated verifier that drafts for all of them; the controls are real, the clock is not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.acceptance.choice import Choice
from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import RoundCosts
from outrider.acceptance.node_budget import NodeBudget
from outrider.acceptance.policy import Policy
from outrider.acceptance.pools import Pools
from outrider.acceptance.proposal import Source
from outrider.acceptance.round import Round
from outrider.acceptance.step_times import StepTimes

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
STANDS = 4
"""As in the coordinator: rounds for which a decision stands."""


@dataclass(frozen=True)
class Card:
    """About what a large GPU takes, in milliseconds: free up to a few rows, then dearer; the host beside it."""

    host: float = 0.04  # a session's, in every round
    host_row: float = 0.0  # a proposed token's

    def verify_ms(self, rows: float) -> float:
        return 4.2 + 0.032 * rows + (5.0 if rows > 256 else 0.0)

    def draft_ms(self, sessions: float) -> float:
        return 0.55 + 0.006 * sessions

    def host_ms(self, sessions: int, rows: int) -> float:
        return 0.15 + self.host * sessions + self.host_row * (rows - sessions)

    def told(self, factor: float) -> tuple[StepTimes, StepTimes]:
        """What the replica says, wrong by a factor."""
        verify = tuple(factor * self.verify_ms(rows) for rows in ROWS)
        return StepTimes(ROWS, verify), StepTimes(ROWS, tuple(factor * self.draft_ms(rows) for rows in ROWS))


@dataclass
class Seat:
    """A session with its control, and what it has decided for the round after the one in progress."""

    control: DraftControl
    chance: float
    following: Choice | None = None
    stands_for: int = 0
    tokens: int = 0
    first: bool = True

    def decide(self, longest: int) -> Choice:
        """The choice of a round; the next one's is made, or stands, meanwhile."""
        choice, levels = self.following, {Source.MODEL: 1}
        if choice is None:
            choice = self.control.decide(levels, longest)
        else:
            self.control.went_on(levels, choice)
        if self.stands_for and self.following is not None:
            self.stands_for -= 1
        else:
            self.following = self.control.decide_next(levels, longest)
            self.stands_for = STANDS if self.following is not None and self.control.settled else 0
        return choice


@dataclass
class Played:
    """What came of a run."""

    tokens: int = 0
    milliseconds: float = 0.0
    lengths: Counter[int] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Tokens a millisecond."""
        return self.tokens / self.milliseconds


class SharedVerifier:
    """Runs rounds of several sessions; one coordinator's costs and pools last from run to run."""

    def __init__(self, card: Card, policy: Policy, *, told: float = 1.0, seed: int = 0) -> None:
        self._card = card
        self._policy = policy
        self._costs, self._pools, self._budget = RoundCosts(), Pools(), NodeBudget()
        self._costs.expect(*card.told(told))
        self._random = random.Random(seed)

    def run(self, sessions: int, tokens: int, chance: Callable[[int], float], longest: int = 8) -> Played:
        """New sessions, until each has so many tokens."""
        seats = [
            Seat(DraftControl(self._costs, self._policy, self._pools, self._budget, in_step=True), chance(number))
            for number in range(sessions)
        ]
        played = Played()
        while min(seat.tokens for seat in seats) < tokens:
            self._round(seats, longest, played)
        for seat in seats:
            seat.control.close()
        return played

    def _round(self, seats: list[Seat], longest: int, played: Played) -> None:
        choices = [seat.decide(longest) for seat in seats]
        lengths = [choice.length for choice in choices]
        deepest, rows = max(lengths), len(seats) + sum(lengths)
        drafting = 0.5 * (deepest > 0)
        drafting += sum(self._card.draft_ms(sum(length > step for length in lengths)) for step in range(deepest))
        verifying = self._card.verify_ms(rows) + self._card.host_ms(len(seats), rows)
        played.milliseconds += drafting + verifying
        for seat, length in zip(seats, lengths, strict=True):
            stood = 0
            while stood < length and self._random.random() < seat.chance:
                stood += 1
            observed = verifying * self._random.lognormvariate(0.0, 0.05)
            times = (None, None) if seat.first else (drafting, observed)
            seat.control.record(
                Round(length, stood, stood + 1, *times, rows=rows, sessions=len(seats), drafted=deepest)
            )
            seat.first = False
            seat.tokens += stood + 1
            played.tokens += stood + 1
            played.lengths[length] += 1


def rate_of_length(card: Card, sessions: int, chance: float, length: int) -> float:
    """Tokens a millisecond if all sessions always guess so much; by arithmetic."""
    rows = sessions * (1 + length)
    spent = card.verify_ms(rows) + card.host_ms(sessions, rows) + 0.5 * (length > 0) + length * card.draft_ms(sessions)
    return sessions * sum(chance**depth for depth in range(length + 1)) / spent
