"""How likely a session's proposed tokens are to stand, learned from those before them."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.acceptance.tally import Tally

MEMORY = 0.97
"""What a trial is worth after each later one of its level: about the last 30 count."""
LEAST_WEIGHT, MOST_WEIGHT = 1.0, 10.0
"""How many trials the prior of a level is worth, and that of all levels together: the less the less is behind it."""
WELL_KNOWN = 100.0
"""Trials of all sessions from which on it is worth the most."""
POOL_MEMORY, POOL_WEIGHT = 0.998, 10.0
"""What a trial is worth to all sessions after each later one of its level, and how many trials the first prior is."""
LUCK_WEIGHT = 5.0
"""How many of the tokens expected to stand it is worth that all levels do as the first priors say."""
POOL_REFRESH = 16
"""Trials after which what all sessions have seen is summed up anew; until it is well known, after each."""
SURPRISE = 0.003
"""A row of falls that has at most this chance says that the text has changed."""
KEPT = 4.0
"""How many trials are left of a level's past then."""
MOST = 0.98
"""No chance is taken to be higher: a longer guess must have something to lose."""

MODEL_PRIOR = (0.7,) * 8
NGRAM_PRIOR = (0.2, 0.3, 0.45, 0.6, 0.7, 0.75, 0.8)


class AcceptancePool:
    """What all sessions of a coordinator have seen of a source, by level: where a new session starts from."""

    def __init__(self, prior: Sequence[float]) -> None:
        """`prior`: the chance at levels 1, 2, ... before anything is known; the last one holds for higher levels."""
        assert prior
        self.chances = tuple(prior)
        self.weight = LEAST_WEIGHT
        """How many trials of a session these chances are worth."""
        self.known = 0.0
        """From 0, nothing, to 1: as well as they are worth the most."""
        self._prior = self.chances
        self._trials = [0.0] * len(prior)
        self._stood = [0.0] * len(prior)
        self._new = 0.0

    def record(self, place: int, stood: float) -> None:
        """A token at the level `place` + 1 stood (1) or fell (0)."""
        self._trials[place] = POOL_MEMORY * self._trials[place] + 1.0
        self._stood[place] = POOL_MEMORY * self._stood[place] + stood
        self._new += 1.0
        self._sum_up()

    def hear(self, tally: Tally, share: float) -> None:
        """This part of a tally is of others, and was not heard before. Levels are places."""
        for level, (trials, stands) in enumerate(zip(*tally, strict=True)):
            place, memory = min(level, len(self._trials) - 1), POOL_MEMORY ** (share * trials)
            self._trials[place] = memory * self._trials[place] + share * trials
            self._stood[place] = memory * self._stood[place] + share * stands
            self._new += share * trials
        self._sum_up()

    def _sum_up(self) -> None:
        if self._new >= POOL_REFRESH or (self._new and self.known < 1.0):
            self._new = 0.0
            self.known = min(1.0, sum(self._trials) / WELL_KNOWN)
            self.weight = LEAST_WEIGHT + self.known * (MOST_WEIGHT - LEAST_WEIGHT)
            expected = sum(prior * trials for prior, trials in zip(self._prior, self._trials, strict=True))
            luck = (sum(self._stood) + LUCK_WEIGHT) / (expected + LUCK_WEIGHT)
            self.chances = tuple(
                min(MOST, (stood + POOL_WEIGHT * min(MOST, luck * prior)) / (trials + POOL_WEIGHT))
                for prior, trials, stood in zip(self._prior, self._trials, self._stood, strict=True)
            )


class AcceptanceEstimate:
    """The chance that a token stands, given that those before it in its proposal did; by level.

    A level says how much speaks for a token. With a draft model it is the position in the proposal, from 1. With
    n-grams it is the number of tokens that agree so far: the matched suffix, and then every proposed token that stood.
    The next level of a token that stood is thus always one higher. An exponential moving average for each level starts
    from the prior, times what the session's tokens as a whole do better or worse than their priors: a session whose
    first tokens fail is expected to do no better at levels that it has not tried. A row of falls that the estimate
    cannot explain cuts the past short, or a request that was predictable for long would guess on for as long.
    """

    def __init__(self, pool: AcceptancePool) -> None:
        """`pool`: of the source, shared by all sessions."""
        self._pool = pool
        self._prior = pool.chances
        self._trials = [0.0] * len(self._prior)
        self._stood = [0.0] * len(self._prior)
        self._all_expected = 0.0  # by the priors
        self._all_stood = 0.0
        self._doubt = 1.0  # the chance of the present row of falls
        self._unlike = False  # this text has changed: what others saw says little of it
        self._known: tuple[float, ...] = ()  # the chance at each level, until the next trial; empty: to be computed

    def chances(self, level: int, length: int) -> tuple[float, ...]:
        """For each token of a proposal of `length` whose first one is at `level`, each given the ones before it."""
        assert level >= 1
        known = self._chances()
        found = known[level - 1 : level - 1 + length]
        return found + known[-1:] * (length - len(found))

    def record(self, level: int, proposed: int, accepted: int) -> None:
        """What became of a chain of `proposed` tokens; those after the first that fell were not tried."""
        assert level >= 1
        last = len(self._prior) - 1
        stood = min(accepted, proposed)
        for place in range(level - 1, level - 1 + stood):
            self._count(min(place, last), 1.0)
        if stood:
            self._doubt = 1.0
            self._known = ()
        if stood < proposed:
            self._fall(min(level - 1 + stood, last))

    def fade(self) -> None:
        """Halve what is known, after a time in which nothing was tried."""
        self._shrink([0.5] * len(self._trials), 0.5)

    def _chances(self) -> tuple[float, ...]:
        if not self._known or self._prior is not self._pool.chances:
            self._prior, weight = self._pool.chances, LEAST_WEIGHT if self._unlike else self._pool.weight
            luck = (self._all_stood + weight) / (self._all_expected + weight)
            self._known = tuple(
                min(MOST, (stood + weight * min(MOST, prior * luck)) / (trials + weight))
                for prior, trials, stood in zip(self._prior, self._trials, self._stood, strict=True)
            )
        return self._known

    def _shrink(self, factors: Sequence[float], factor: float) -> None:
        self._known = ()
        self._trials = [value * each for value, each in zip(self._trials, factors, strict=True)]
        self._stood = [value * each for value, each in zip(self._stood, factors, strict=True)]
        self._all_expected *= factor
        self._all_stood *= factor

    def _fall(self, place: int) -> None:
        self._doubt *= 1.0 - self._chances()[place]
        if self._doubt <= SURPRISE:
            self._doubt, self._unlike = 1.0, True
            factors = [min(1.0, KEPT / max(KEPT, trials)) for trials in self._trials]
            self._shrink(factors, min(factors))
        self._count(place, 0.0)
        self._known = ()

    def _count(self, place: int, stood: float) -> None:
        self._pool.record(place, stood)
        self._trials[place] = MEMORY * self._trials[place] + 1
        self._stood[place] = MEMORY * self._stood[place] + stood
        self._all_expected = MEMORY * self._all_expected + self._prior[place]
        self._all_stood = MEMORY * self._all_stood + stood
