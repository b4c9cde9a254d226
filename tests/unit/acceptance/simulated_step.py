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
from outrider.acceptance.tally import Tallying
from outrider.acceptance.votes import agreed_depth
from tests.benchmarks.simulated.card import Card

STANDS = 4
"""As in the coordinator: rounds for which a decision stands."""


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
        self._tallying = Tallying()

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
        depth = agreed_depth([choice.vote for choice in choices if choice.vote is not None])
        lengths = [choice.length if choice.vote is None else min(choice.length, depth) for choice in choices]
        deepest, proposed, guessing = max(lengths), sum(lengths), sum(length > 0 for length in lengths)
        opened = sum(length > 0 and not seat.guessed for seat, length in zip(seats, lengths, strict=True))
        drafting = self._card.drafting_ms * (deepest > 0) + opened * self._card.opening_ms
        drafting += sum(self._card.draft_ms(sum(length > step for length in lengths)) for step in range(deepest))
        rows = len(seats) + proposed
        verifying = self._card.verify_ms(rows) + self._card.host_ms(len(seats) - guessing, guessing, proposed)
        played.milliseconds += drafting + verifying
        tally = self._tallying.take()  # of the round before
        for seat, length in zip(seats, lengths, strict=True):
            stood = 0
            while stood < length and self._random.random() < seat.chance:
                stood += 1
            self._tallying.add(length, stood)
            observed = verifying * self._random.lognormvariate(0.0, 0.05)
            seat.control.record(
                Round(
                    length,
                    stood,
                    stood + 1,
                    drafting if deepest and not opened else None,  # the first has to catch up
                    None if seat.first else observed,
                    rows=rows,
                    sessions=len(seats),
                    drafted=deepest,
                    tally=tally,
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
