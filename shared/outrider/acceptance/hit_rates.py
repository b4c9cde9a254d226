"""How often the outcome of a round was foreseen, by how many tokens were drafted ahead for each."""

from __future__ import annotations

MEMORY = 0.98
"""What a look into an outcome cache is worth after each later one of its length."""
PRIOR_LENGTH, PRIOR_RATE, PRIOR_LOOKS = 4, 0.7, 10.0
"""Before anything is known guesses of so many tokens are foreseen that often; how many looks that is worth."""
LINE_WEIGHT = 10.0
"""How many looks of a length it is worth what the others say of it."""
LEAST = 0.1
"""No rate is expected to be lower."""


class HitRates:
    """Of all sessions of a coordinator.

    A round of k guessed tokens may end at k + 1 places, each with its own likely next tokens, and no more outcomes are
    drafted for than fit: so misses are taken to grow in proportion to k, until a length has been tried for long.
    """

    def __init__(self) -> None:
        self._looks: dict[int, float] = {}
        self._hits: dict[int, float] = {}

    def observe(self, length: int, hit: bool) -> None:
        """Whether what came of a round was among what had been drafted ahead, so many tokens for each outcome."""
        self._looks[length] = MEMORY * self._looks.get(length, 0.0) + 1.0
        self._hits[length] = MEMORY * self._hits.get(length, 0.0) + hit

    def rate(self, length: int) -> float:
        """How many of the outcomes are foreseen, 0 to 1, if so many tokens are drafted for each."""
        looks, hits = self._looks.get(length, 0.0), self._hits.get(length, 0.0)
        return (hits + LINE_WEIGHT * self._on_line(length)) / (looks + LINE_WEIGHT)

    def _on_line(self, length: int) -> float:
        misses = PRIOR_LOOKS * (1.0 - PRIOR_RATE) + sum(self._looks.values()) - sum(self._hits.values())
        tokens = PRIOR_LOOKS * PRIOR_LENGTH + sum(each * looks for each, looks in self._looks.items())
        return max(LEAST, 1.0 - length * misses / tokens)
