"""A session on machines whose costs and acceptance are known: a clock that only counts what they say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.acceptance.choice import Choice
from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import RoundCosts
from outrider.acceptance.policy import Policy
from outrider.acceptance.proposal import Source
from outrider.acceptance.round import Round

Chance = Callable[[Source, int], float]
"""The chance that a token of a source stands after so many committed tokens, those before it standing."""


@dataclass(frozen=True)
class Machine:
    """Times in milliseconds; a verified or drafted token costs a fraction of a plain round."""

    plain_ms: float = 50.0
    verify: float = 0.04
    draft: float = 0.1
    round_trip_ms: float = 0.5
    noise: float = 0.2  # standard deviation of the logarithm of an observed time
    odd: float = 0.02  # how often an observation is ten times too long

    def verify_ms(self, proposed: int) -> float:
        return self.plain_ms * (1 + self.verify * proposed)

    def draft_ms(self, drafted: int) -> float:
        return self.round_trip_ms + self.plain_ms * self.draft * drafted if drafted else 0.0

    def best_speed(self, chance: float, longest: int) -> float:
        """Tokens per plain round's time with the best fixed length of the draft model, by trying all."""
        return max(
            sum(chance**depth for depth in range(length + 1))
            * self.plain_ms
            / (self.verify_ms(length) + self.draft_ms(length))
            for length in range(longest + 1)
        )


@dataclass
class Run:
    """What a session did."""

    milliseconds: float = 0.0
    tokens: int = 0
    choices: Counter[Choice] = field(default_factory=Counter)
    falls: int = 0

    def proposed_by(self, source: Source) -> int:
        """Rounds with a proposal of the source."""
        return sum(count for choice, count in self.choices.items() if choice.source is source)


class SimulatedSession:
    """One session; `run` may be called several times and tells of its own part only."""

    def __init__(
        self,
        machine: Machine,
        costs: RoundCosts,
        *,
        longest: int = 4,
        policy: Policy | None = None,
        seed: int = 0,
        by_itself: bool = False,
    ) -> None:
        """`by_itself`: each round is decided for before the one ahead of it has ended, where that can be."""
        self.control = DraftControl(costs, policy or Policy())
        self.machine = machine
        self.committed = 0
        self._longest = longest
        self._by_itself = by_itself
        self._next: Choice | None = None
        self._random = random.Random(seed)
        self._first = True

    def run(self, tokens: int, chance: Chance, *, ngram: float = 0.0, model: bool = True, deeper: float = 1.0) -> Run:
        """Commit so many tokens more; `ngram`: how often there is a match. The clock of the run is free of noise.

        `deeper`: by what the chance of each further token of a guess is multiplied.
        """
        run = Run()
        while run.tokens < tokens:
            levels = {Source.NGRAM: self._random.choice((2, 3, 4))} if self._random.random() < ngram else {}
            if model:
                levels[Source.MODEL] = 1
            choice = self._decide(levels, min(self._longest, tokens - run.tokens - 1))
            accepted = 0
            while accepted < choice.length and self._random.random() < (
                chance(choice.source, self.committed) * deeper**accepted
            ):
                accepted += 1
            draft_ms = self.machine.draft_ms(choice.length) if choice.source is Source.MODEL else 0.0
            verify_ms = self.machine.verify_ms(choice.length)
            run.falls += self.control.record(
                Round(choice.length, accepted, accepted + 1, self._observed(draft_ms), self._observed(verify_ms))
            )
            self._first = False
            run.milliseconds += draft_ms + verify_ms
            run.tokens += accepted + 1
            run.choices[choice] += 1
            self.committed += accepted + 1
        return run

    def _decide(self, levels: dict[Source, int], longest: int) -> Choice:
        choice, self._next = self._next, None
        if choice is None or choice.length > longest:
            choice = self.control.decide(levels, longest)
        else:
            self.control.went_on(levels, choice)
        if self._by_itself and Source.MODEL in levels:
            after = self.control.decide_next(levels, self._longest)
            self._next = None if after is None or after.source is Source.NGRAM else after
        return choice

    def speed(self, run: Run) -> float:
        """Tokens in the time of a plain round: 1 is plain decoding."""
        return run.tokens / run.milliseconds * self.machine.plain_ms

    def _observed(self, milliseconds: float) -> float | None:
        if self._first:
            return None
        odd = 10.0 if self._random.random() < self.machine.odd else 1.0
        return milliseconds * odd * self._random.lognormvariate(0.0, self.machine.noise)


def warmed(machine: Machine, *, longest: int = 4, seed: int = 99) -> RoundCosts:
    """Costs as one earlier session of middling luck leaves them."""
    costs = RoundCosts()
    SimulatedSession(machine, costs, longest=longest, seed=seed).run(200, lambda source, place: 0.7, ngram=0.3)
    return costs
