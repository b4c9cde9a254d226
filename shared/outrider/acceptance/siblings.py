"""How often a draft's second, third, ... choice stands where those before it fell, learned from the rounds."""

from __future__ import annotations

from collections.abc import Sequence

SIBLINGS_PRIOR = (0.4, 0.25, 0.2)
"""Before anything is known; as many siblings as a place gets at most."""
POOL_MEMORY, POOL_WEIGHT = 0.998, 20.0
"""What a trial is worth to all sessions after each later one, and how many trials the prior is worth there."""
MEMORY, WEIGHT = 0.97, 8.0
"""The same for one session, which starts from what all have seen."""
UNTRIED = 0.995
"""What is left of a rank's past after each fall at which it was not tried, so that it gets another chance."""


class _Trials:
    """Moving averages by rank; what was tried and what of it stood."""

    def __init__(self, ranks: int, memory: float, weight: float) -> None:
        self._memory = memory
        self._weight = weight
        self._trials = [0.0] * ranks
        self._stood = [0.0] * ranks

    def record(self, tried: int, stood: int | None) -> None:
        """At one fall `tried` siblings were there, and the one at index `stood` was right (None: none was)."""
        tried = tried if stood is None else min(tried, stood + 1)
        for rank in range(len(self._trials)):
            was_tried = rank < tried
            memory = self._memory if was_tried else UNTRIED
            self._trials[rank] = memory * self._trials[rank] + was_tried
            self._stood[rank] = memory * self._stood[rank] + (rank == stood)

    def chances(self, prior: Sequence[float]) -> tuple[float, ...]:
        weight = self._weight
        return tuple(
            (stood + weight * each) / (trials + weight)
            for stood, trials, each in zip(self._stood, self._trials, prior, strict=True)
        )


class SiblingPool:
    """What all sessions of a coordinator have seen of its draft and target: where a new session starts from."""

    def __init__(self) -> None:
        self._trials = _Trials(len(SIBLINGS_PRIOR), POOL_MEMORY, POOL_WEIGHT)

    def record(self, tried: int, stood: int | None) -> None:
        """See `SiblingEstimate.record`."""
        self._trials.record(tried, stood)

    @property
    def chances(self) -> tuple[float, ...]:
        """By rank, as in `SiblingEstimate`."""
        return self._trials.chances(SIBLINGS_PRIOR)


class SiblingEstimate:
    """One session's chances: an exponential moving average for each rank, which starts from the pool's.

    They count falls alone: where the first choice stands there is nothing to learn of the others.
    """

    def __init__(self, pool: SiblingPool) -> None:
        self._pool = pool
        self._trials = _Trials(len(SIBLINGS_PRIOR), MEMORY, WEIGHT)

    @property
    def chances(self) -> tuple[float, ...]:
        """That the draft's second choice stands where its first fell, the third where these two fell, and so on."""
        return self._trials.chances(self._pool.chances)

    def record(self, tried: int, stood: int | None) -> None:
        """A first choice fell that had `tried` siblings, 0 included; the one at index `stood` stood, or None did."""
        self._pool.record(tried, stood)
        self._trials.record(tried, stood)
