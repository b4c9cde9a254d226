"""The decision of a round: how many tokens to propose, and from which source, for the most tokens per millisecond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from outrider.acceptance.costs import CostTable
from outrider.acceptance.estimate import MOST
from outrider.acceptance.proposal import Source
from outrider.acceptance.window import AcceptanceWindow

BEGIN_MARGIN = 0.05
"""After plain decoding, speculation begins only where it is expected to be this much faster."""
STAY_MARGIN = 0.02
"""It goes on only where it is expected to be this much faster: what is expected may be wrong."""
CHANGE_MARGIN = 0.02
"""Another length or source is taken only where it is expected to be this much faster than the one before."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Propose `length` tokens of `source`. Length 0 is plain decoding."""

    source: Source
    length: int


PLAIN = Choice(Source.NONE, 0)
NO_WINDOW = AcceptanceWindow(1, 0.0)


def choose(
    costs: CostTable,
    chances: Mapping[Source, Sequence[float]],
    window: AcceptanceWindow,
    previous: Choice | None = None,
) -> Choice:
    """The fastest choice, or one that is nearly as fast and spares a change from `previous`.

    `chances` has, for each source that can propose now, the chance of every token that it may propose, each given the
    ones before it.
    """
    rates = {PLAIN: rate(costs, PLAIN)}
    margin = BEGIN_MARGIN if previous == PLAIN else STAY_MARGIN
    enough = (1.0 + margin) * rates[PLAIN]
    for source, each in chances.items():
        expected = expected_accepted(each)
        for length in range(1, len(each) + 1):
            # One token is always affordable: what comes of it is for the window to judge.
            if length == 1 or window.bears(length, expected[length - 1], best=expected[0]):
                choice = Choice(source, length)
                rates[choice] = rate(costs, choice, expected[length - 1])
    best = max(rates, key=rates.__getitem__)
    if rates[best] < enough:
        return PLAIN
    if previous is None or previous == PLAIN:
        return best
    kept = rates.get(previous, 0.0)
    return previous if kept >= enough and rates[best] <= (1.0 + CHANGE_MARGIN) * kept else best


def rate(costs: CostTable, choice: Choice, accepted: float = 0.0) -> float:
    """Committed tokens per millisecond of a round in which `accepted` of the proposed tokens are expected to stand."""
    return (1.0 + accepted) / costs.round_ms(choice.source, choice.length)


def expected_accepted(chances: Sequence[float]) -> tuple[float, ...]:
    """Expected accepted tokens of a guess of 1, 2, ... tokens.

    E[accepted of k] = sum over d <= k of the product over i <= d of chance i (Leviathan et al. 2023, by position).
    """
    return tuple(accumulate(accumulate(chances, mul)))


def can_pay(costs: CostTable, source: Source, longest: int) -> bool:
    """Whether guesses of the source would be worth their time if nearly every token stood."""
    return choose(costs, {source: (MOST,) * longest}, NO_WINDOW, PLAIN) != PLAIN
