"""What fits into the time there is. Pure decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEW_REPEATS = 3
"""Fewest samples that a median is taken of by choice; a machine that stalls may leave less."""
SHARE = 0.5
"""Part of the time left that one row of the grid may take while there are more to come: each costs twice the last."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How one concurrency is timed."""

    tokens: tuple[int, ...]  # the numbers of tokens that are timed
    repeats: int


def plan_row(
    call_s: Mapping[int, float], tokens: Sequence[int], repeats: int, left_s: float, *, prepare_s: float, more: bool
) -> RowPlan | None:
    """The finest plan whose time is expected to fit; None if none does.

    `call_s`: expected seconds by number of tokens, for each of `tokens`. `prepare_s`: seconds before the first sample.
    `more`: whether rows follow. Each plan makes one pass more than it has repeats, to warm up.
    """
    limit = left_s * SHARE if more else left_s
    coarse = coarsened(tokens)
    ends = tuple(dict.fromkeys((tokens[0], tokens[-1])))
    few = min(FEW_REPEATS, repeats)
    plans = [RowPlan(tuple(part), count) for part in (tokens, coarse, ends) for count in (repeats, few)]
    for plan in plans:
        if prepare_s + (plan.repeats + 1) * sum(call_s[n] for n in plan.tokens) <= limit:
            return plan
    return None


def coarsened(tokens: Sequence[int]) -> tuple[int, ...]:
    """The first, the last, and between them those that are about twice the one before."""
    kept = [tokens[0]]
    for n in tokens[1:-1]:
        if n >= 2 * max(kept[-1], 0.5):
            kept.append(n)
    return tuple(dict.fromkeys((*kept, tokens[-1])))


def affordable(counts: Sequence[int], token_s: float, left_s: float) -> int:
    """How many of the first questions, of `counts` tokens each, take at most `left_s`; at least one."""
    spent, number = 0.0, 0
    for count in counts:
        spent += count * token_s
        if spent > left_s:
            break
        number += 1
    return max(1, number)
