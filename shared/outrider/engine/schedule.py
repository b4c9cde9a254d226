"""Which sessions join the next forward pass, and with how many tokens. A pure decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PREFILL_SHARE = 0.25
"""Part of a step's tokens kept for prefill while decoding sessions could fill it all, so that neither starves."""


class Demand(NamedTuple):
    """What one session still has to run before its round is done: `chain` committed tokens, then `tree` nodes.

    The last chain token and the tree share one forward pass, so the final piece takes at least `tree + 1`.
    """

    chain: int  # >= 1
    tree: int

    @property
    def total(self) -> int:
        """Tokens to run until the round is done."""
        return self.chain + self.tree


def schedule(demands: Sequence[Demand], *, budget: int, decode_limit: int) -> list[int]:
    """Chain tokens granted to each session, in the order given (oldest first); 0 is nothing this time.

    A session granted its whole chain runs its tree too. Sessions with at most `decode_limit` tokens in all are
    decoding: they go first and are never split. The others are prefilling and take chunks of what is left.

    Args:
        demands: one per session that has work, oldest first.
        budget: most tokens in one forward pass; at least one demand's worth is always granted.
        decode_limit: largest total of a decoding session; at most `budget`.
    """
    assert 0 < decode_limit <= budget, "a decoding session must fit into one step"
    totals = [chain + tree for chain, tree in demands]
    if sum(totals) <= budget and max(totals, default=0) <= decode_limit:  # as in most steps
        return [chain for chain, _ in demands]
    grants = [0] * len(demands)
    decoding = [index for index, total in enumerate(totals) if total <= decode_limit]
    prefilling = [index for index, total in enumerate(totals) if total > decode_limit]
    kept = int(budget * PREFILL_SHARE) if prefilling else 0
    left = budget
    for index in decoding:
        if totals[index] <= left - kept or left == budget:
            grants[index] = demands[index].chain
            left -= totals[index]
    for index in prefilling:
        demand = demands[index]
        if totals[index] <= left:
            grants[index] = demand.chain
            left -= totals[index]
        elif left > 0:
            # A chunk stops short of the last token, which must run together with the tree.
            grants[index] = min(left, demand.chain - 1)
            left -= grants[index]
    return grants
