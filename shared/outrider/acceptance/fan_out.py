"""Which outcomes of a round to draft ahead for: how many next tokens after each path that may be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from outrider.acceptance.tree import TokenTree

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
    tree: TokenTree, chances: Sequence[float], recovered: Sequence[float], bonus: Sequence[float], budget: int
) -> tuple[int, ...]:
    """[n + 1] next tokens to foresee where no node of the tree in flight stands, and where the path ends with node i.

    It ends with a node with the probability that this one stands and none that follows it does. `chances` [n]: that
    each node stands, given that the one it follows does. `recovered` and `bonus`: the chance of each rank of the next
    token after a fall, and after a whole path. At most `budget` in all, the likeliest ones.
    """
    reached, ends, followers = [1.0], [1.0], [0]
    for parent, chance in zip(tree.parents, chances, strict=True):
        stands = reached[parent + 1] * chance
        reached.append(stands)
        ends.append(stands)
        followers.append(0)
        ends[parent + 1] -= stands
        followers[parent + 1] += 1
    outcomes = [
        (end * chance, row)
        for row, (end, count) in enumerate(zip(ends, followers, strict=True))
        for chance in (_left(recovered, count - 1) if count else bonus)
        if end * chance > 0.0
    ]
    shape = [0] * len(ends)
    for _, row in sorted(outcomes, key=lambda outcome: -outcome[0])[:budget]:
        shape[row] += 1
    return tuple(shape)


def _left(recovered: Sequence[float], fallen: int) -> Sequence[float]:
    """The chances of the ranks that are left where so many siblings fell too."""
    if not fallen:
        return recovered
    left = 1.0 - sum(recovered[:fallen])
    return [chance / left for chance in recovered[fallen:]] if left > 0.0 else ()
