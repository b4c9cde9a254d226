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
TIMED_EACH = 8
"""As in the engine: rows of a session in the rounds that a replica times of itself, but for those of one row each."""
STANDS = 4
"""As in the coordinator: rounds for which a decision stands."""


@dataclass(frozen=True)
class Card:
    """About what a large GPU takes, in milliseconds: free up to a few rows, then dearer; the host beside it."""

    host: float = 0.04  # a session's that decodes plainly, each round
    host_guess: float = 0.04  # the same of one that guesses
    host_row: float = 0.0  # a proposed token's
    opening_ms: float = 0.0  # of the draft, before a session's first guess
    base_ms: float = 4.2  # of a verifier's pass; then a row's, and what it takes more beyond 256, at once and each
    row_ms: float = 0.032
    step_ms: float = 5.0
    later_row_ms: float = 0.0
    drafting_ms: float = 0.5  # of drafting at all; then a pass's, and a session's in it
    draft_pass_ms: float = 0.55
    drafted_ms: float = 0.006

    def verify_ms(self, rows: float) -> float:
        return self.base_ms + self.row_ms * rows + (rows > 256) * (self.step_ms + self.later_row_ms * (rows - 256))

    def draft_ms(self, sessions: float) -> float:
        return self.draft_pass_ms + self.drafted_ms * sessions

    def host_ms(self, plain: int, guessing: int, proposed: int) -> float:
        return 0.15 + self.host * plain + self.host_guess * guessing + self.host_row * proposed

    def told(self, factor: float, guessed: float = 1.0, *, seen: float = 0.5) -> tuple[StepTimes, StepTimes]:
        """What the replica says: of its host it has seen a part; wrong by a factor, more so for rounds with guesses."""

        def packed_ms(rows: int) -> float:
            count = -(-rows // TIMED_EACH)
            return factor * guessed * (self.verify_ms(rows) + seen * self.host_ms(0, count, rows - count))

        apart = tuple(factor * (self.verify_ms(rows) + seen * self.host_ms(rows, 0, 0)) for rows in ROWS)
        verify = StepTimes(ROWS, tuple(map(packed_ms, ROWS)), TIMED_EACH, StepTimes(ROWS, apart))
        return verify, StepTimes(ROWS, tuple(factor * self.draft_ms(rows) for rows in ROWS))


MEASURED = Card(
    host=0.033,
    host_guess=0.072,
    opening_ms=0.05,
    base_ms=4.35,
    row_ms=0.0136,
    step_ms=0.0,
    later_row_ms=0.0195,
    drafting_ms=0.0,
    draft_pass_ms=0.606,
    drafted_ms=0.0,
)
"""Fitted to an H200's rounds of 4 to 128 sessions and guesses of 0 to 5 tokens: within 5% of all of them."""


@dataclass
class Coordinator:
    """What one coordinator's sessions share."""

    costs: RoundCosts
    pools: Pools = field(default_factory=Pools)
    budget: NodeBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = NodeBudget(self.costs)


@dataclass
class Seat:
    """A session with its control, and what it has decided for the round after the one in progress."""

    control: DraftControl
    chance: float
    following: Choice | None = None
    stands_for: int = 0
    tokens: int = 0
    first: bool = True
    guessed: bool = False

    def decide(self, longest: int) -> Choice:
        """The choice of a round; the next one's is made, or stands, meanwhile."""
        choice, levels = self.following, {Source.MODEL: 1}
        if choice is None:
            choice = self.control.decide({} if self.first else levels, longest)
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
    """Runs rounds of several sessions; what the coordinators have learned lasts from run to run."""

    def __init__(
        self,
        card: Card,
        policy: Policy,
        *,
        told: float = 1.0,
        guessed: float = 1.0,
        coordinators: int = 1,
        seed: int = 0,
    ) -> None:
        """`told`, `guessed`: see `Card.told`."""
        self._card = card
        self._policy = policy
        self._coordinators = [Coordinator(RoundCosts()) for _ in range(coordinators)]
        for each in self._coordinators:
            each.costs.expect(*card.told(told, guessed))
        self._random = random.Random(seed)

    def run(self, sessions: int, tokens: int, chance: Callable[[int], float], longest: int = 8) -> Played:
        """New sessions, until each has so many tokens."""
        shares = [self._coordinators[number % len(self._coordinators)] for number in range(sessions)]
        seats = [
            Seat(DraftControl(one.costs, self._policy, one.pools, one.budget, in_step=True), chance(number))
            for number, one in enumerate(shares)
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
        deepest, proposed, guessing = max(lengths), sum(lengths), sum(length > 0 for length in lengths)
        opened = sum(length > 0 and not seat.guessed for seat, length in zip(seats, lengths, strict=True))
        drafting = self._card.drafting_ms * (deepest > 0) + opened * self._card.opening_ms
        drafting += sum(self._card.draft_ms(sum(length > step for length in lengths)) for step in range(deepest))
        rows = len(seats) + proposed
        verifying = self._card.verify_ms(rows) + self._card.host_ms(len(seats) - guessing, guessing, proposed)
        played.milliseconds += drafting + verifying
        for seat, length in zip(seats, lengths, strict=True):
            stood = 0
            while stood < length and self._random.random() < seat.chance:
                stood += 1
            observed = verifying * self._random.lognormvariate(0.0, 0.05)
            seat.control.record(
                Round(
                    length,
                    stood,
                    stood + 1,
                    drafting if seat.guessed else None,  # the first has to catch up
                    None if seat.first else observed,
                    rows=rows,
                    sessions=len(seats),
                    drafted=deepest,
                )
            )
            seat.first, seat.guessed = False, seat.guessed or length > 0
            seat.tokens += stood + 1
            played.tokens += stood + 1
            played.lengths[length] += 1


def rate_of_length(card: Card, sessions: int, chance: float, length: int) -> float:
    """Tokens a millisecond if all sessions always guess so much; by arithmetic."""
    rows, guessing = sessions * (1 + length), sessions * (length > 0)
    spent = card.verify_ms(rows) + card.host_ms(sessions - guessing, guessing, sessions * length)
    spent += card.drafting_ms * (length > 0) + length * card.draft_ms(sessions)
    return sessions * sum(chance**depth for depth in range(length + 1)) / spent
