"""Which siblings a draft's guesses would have: placed by its own ranks, as the coordinator places them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from outrider.acceptance.shape import gains, siblings

COUNTS = (1, 2, 4, 8)
"""Numbers of siblings that are compared; more than eight ranks are not told apart."""

Siblings = Mapping[tuple[int, int], tuple[int, ...]]
"""By length of the chain and number of siblings: how many stand beside the first token, the second, ..."""


def place_siblings(stands: Sequence[float], others: Sequence[float], lengths: Sequence[int]) -> Siblings:
    """The best places for siblings of chains of these lengths; chain and siblings together as long as the longest.

    `stands` and `others` as in `outrider.acceptance.shape.gains`. Numbers of siblings that have no gain are left out.
    """
    table = gains(stands, others)
    found = {
        (length, count): siblings(count, table, length)
        for length in lengths
        for count in COUNTS
        if length + count <= lengths[-1]
    }
    return {key: beside for key, beside in found.items() if sum(beside) == key[1]}


def chances_beside(rank_lists: Iterable[Sequence[int]]) -> tuple[float, ...]:
    """Where the first choice falls, the chance of the second; where that falls too, of the third; as far as any did."""
    missed = [rank for ranks in rank_lists for rank in ranks if rank > 0]
    found: list[float] = []
    for rank in range(1, COUNTS[-1] + 1):
        left = sum(each >= rank for each in missed)
        if not left:
            break
        found.append(sum(each == rank for each in missed) / left)
    return tuple(found)
