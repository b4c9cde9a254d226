"""Which outcomes of a round to draft ahead for: how many next tokens after each number of accepted ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

MEMORY = 0.98
"""What an observation is worth after each later one of its kind: about the last 50 count."""
PRIOR_WEIGHT = 10.0
"""How many observations the priors are worth."""
RECOVERED_PRIOR = (0.4, 0.15, 0.09, 0.06, 0.04, 0.03, 0.02, 0.02)
BONUS_PRIOR = (0.7, 0.1, 0.05, 0.03, 0.02, 0.01, 0.01, 0.01)


class RankEstimate:
    """How often the next token was the draft's first, second, ... choice for its place; the rest was not foreseen."""

    def __init__(self, prior: Sequence[float]) -> None:
        """`prior`: chances that sum to less than 1."""
        self._prior = tuple(prior)
        self._found = [0.0] * len(prior)
        self._all = 0.0

    def record(self, rank: int | None) -> None:
        """The next token had this rank, from 0; None: it was not among those foreseen."""
        self._found = [MEMORY * found for found in self._found]
        self._all = MEMORY * self._all + 1.0
        if rank is not None and rank < len(self._found):
            self._found[rank] += 1.0

    @property
    def chances(self) -> tuple[float, ...]:
        """By rank, never rising: a rank that was not asked for was not observed either."""
        raw = [
            (found + PRIOR_WEIGHT * prior) / (self._all + PRIOR_WEIGHT)
            for found, prior in zip(self._found, self._prior, strict=True)
        ]
        return tuple(accumulate(raw, min))


def fan_out(
    chances: Sequence[float], recovered: Sequence[float], bonus: Sequence[float], budget: int
) -> tuple[int, ...]:
    """[n + 1] next tokens to foresee after 0, 1, ... n accepted tokens, `budget` at most in all.

    The round ends after d tokens with the probability that they stand and the next one does not. `chances` [n]: that
    each token in flight stands, given those before it. `recovered` and `bonus`: the chance of each rank of the next
    token after a fall, and after all stood. The likeliest outcomes are taken.
    """
    reached = (1.0, *accumulate(chances, mul))
    ends = [reach * (1.0 - chance) for reach, chance in zip(reached, (*chances, 0.0), strict=True)]
    ranks = [recovered] * len(chances) + [bonus]
    outcomes = [
        (end * chance, depth) for depth, end in enumerate(ends) for chance in ranks[depth] if end * chance > 0.0
    ]
    shape = [0] * len(ends)
    for _, depth in sorted(outcomes, key=lambda outcome: -outcome[0])[:budget]:
        shape[depth] += 1
    return tuple(shape)
