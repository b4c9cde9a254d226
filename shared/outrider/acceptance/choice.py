"""The decision of a round: how many tokens to propose, from which source, and how many beside them.

What is wanted is the most tokens per millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from outrider.acceptance.costs import CostTable
from outrider.acceptance.estimate import MOST
from outrider.acceptance.proposal import Source
from outrider.acceptance.shape import Gains, gains, leaf_gains, siblings
from outrider.acceptance.window import AcceptanceWindow

BEGIN_MARGIN = 0.05
"""After plain decoding, speculation begins only where it is expected to be this much faster."""
STAY_MARGIN = 0.02
"""It goes on only where it is expected to be this much faster: what is expected may be wrong."""
CHANGE_MARGIN = 0.02
"""Another length or source is taken only where it is expected to be this much faster than the one before."""
TOGETHER_MARGIN = 0.03
"""A session drafts ahead as far as those beside it unless another length is expected to be this much faster."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Propose `length` tokens of `source`, one after another. Length 0 is plain decoding.

    `siblings`: how many of the source's next choices to propose beside the first token, the second, and so on. `vote`:
    where sessions vote on the length, what this one is for; it gets no more than `length`, however they decide.
    """

    source: Source
    length: int
    siblings: tuple[int, ...] = ()
    vote: int | None = None

    @property
    def chain(self) -> Choice:
        """Its source and its length alone."""
        return self if self.vote is None and not self.siblings else Choice(self.source, self.length)


PLAIN = Choice(Source.NONE, 0)
NO_WINDOW = AcceptanceWindow(1, 0.0)


@dataclass(frozen=True, slots=True)
class Beside:
    """What may be proposed beside a source's chain.

    `others`: by rank, the chance that the second choice stands where the first fell, and so on (`shape.gains`).
    `most`: siblings in all; with `always` they are proposed whatever they cost. `nodes`: most with the chain.
    """

    others: tuple[float, ...]
    most: int
    nodes: int
    always: bool = False

    def room(self, length: int) -> int:
        """Most siblings of a chain of `length`."""
        return max(0, min(self.most, self.nodes - length))


NOTHING_BESIDE: Mapping[Source, Beside] = {}


def choose(
    costs: CostTable,
    chances: Mapping[Source, Sequence[float]],
    window: AcceptanceWindow,
    previous: Choice | None = None,
    beside: Mapping[Source, Beside] = NOTHING_BESIDE,
    price: float = 0.0,
    *,
    steady: bool = False,
) -> Choice:
    """The fastest choice, or one that is nearly as fast and spares a change from `previous`, a chain.

    `chances` has, for each source that can propose now, the chance of every token that it may propose, each given the
    ones before it. `beside`: for the sources that can propose trees. `price`: what a token must be expected to bring,
    since others of the same step would bring as much (`NodeBudget`). `steady`: the choice stands for many rounds.
    """
    rates = {PLAIN: rate(costs, PLAIN)}
    counts: dict[Choice, int] = {}  # of the siblings
    tables: dict[Source, Gains] = {}
    margin = BEGIN_MARGIN if previous == PLAIN else STAY_MARGIN
    enough = (1.0 + margin) * rates[PLAIN]
    for source, each in chances.items():
        expected = expected_accepted(each)
        tried = expected_tried(expected)
        more = beside.get(source)
        tables[source] = table = gains(each, more.others if more else ())
        for length, (gain, *_) in enumerate(table, start=1):
            if gain <= price:
                break
            stand = expected[length - 1]
            affordable = window.bears(length, tried[length - 1], stand, best=expected[0])
            affordable = affordable and (not steady or window.sustains(tried[length - 1], stand))
            if length == 1 or affordable:  # one token always is: what comes of it is for the window to judge
                choice = Choice(source, length)
                rates[choice] = rate(costs, choice, stand)
                if more:
                    counts[choice], rates[choice] = with_siblings(costs, choice, table, more, price)
    best = max(rates, key=rates.__getitem__)
    if rates[best] < enough:
        return PLAIN
    if previous is not None and previous != PLAIN:
        kept = rates.get(previous, 0.0)
        if kept >= enough and rates[best] <= (1.0 + CHANGE_MARGIN) * kept:
            best = previous
    if not counts.get(best):
        return best
    return replace(best, siblings=siblings(counts[best], tables[best.source], best.length))


def with_siblings(costs: CostTable, chain: Choice, table: Gains, more: Beside, price: float = 0.0) -> tuple[int, float]:
    """How many siblings make a chain fastest, and how fast in tokens per millisecond.

    Their number is decided by what the target takes for as many nodes; drafting them takes no time.
    """
    length = chain.length
    accepted = sum(row[0] for row in table[:length])
    best, best_count = rate(costs, chain, accepted), 0
    drafting = costs.round_ms(chain.source, length) - costs.verify_ms[length]
    for count, gain in enumerate(leaf_gains(table, length)[: more.room(length)], start=1):
        if gain <= price:
            break
        accepted += gain
        speed = (1.0 + accepted) / (costs.verify_ms[length + count] + drafting)
        if more.always or speed > best:
            best, best_count = speed, count
    return best_count, best


def rate(costs: CostTable, choice: Choice, accepted: float = 0.0) -> float:
    """Committed tokens per millisecond of a round in which `accepted` of the proposed tokens are expected to stand."""
    return (1.0 + accepted) / costs.round_ms(choice.source, choice.length, sum(choice.siblings))


def ahead_length(costs: CostTable, expected: Sequence[float], hit_rate: Callable[[int], float], others: int = 0) -> int:
    """How many tokens to draft ahead for each outcome, if so many are `expected` to stand of 1, 2, ...; 0: none pay.

    Those pay that are better than plain decoding even if rounds that were not foreseen brought a token alone. `others`:
    as many as the sessions beside draft. They are kept to where another number is hardly better: guesses of one length
    end together, so that sessions share passes of the draft and of the target.
    """
    rates: dict[int, float] = {}
    for length, accepted in enumerate(expected, start=1):
        hits, hit_ms = hit_rate(length), max(costs.pass_ms or costs.plain_ms, costs.ahead_ms[length])
        if (1.0 + hits * accepted) / hit_ms >= (1.0 + STAY_MARGIN) * rate(costs, PLAIN):
            rates[length] = _rate_with_misses(costs, length, accepted, hits, hit_ms)
    best = max(rates, key=rates.__getitem__, default=0)
    return others if others in rates and (1.0 + TOGETHER_MARGIN) * rates[others] >= rates[best] else best


def _rate_with_misses(costs: CostTable, length: int, accepted: float, hits: float, hit_ms: float) -> float:
    """Committed tokens per millisecond if `hits` of the rounds find their guesses there; the others ask for fresh ones,
    or are plain, whichever brings more.
    """
    more_ms = costs.draft_ms[length] if costs.miss_ms is None else costs.miss_ms
    if (1.0 + accepted) / (hit_ms + more_ms) > rate(costs, PLAIN):
        return (1.0 + accepted) / (hit_ms + (1.0 - hits) * more_ms)
    return (1.0 + hits * accepted) / (hits * hit_ms + (1.0 - hits) * costs.plain_ms)


def expected_accepted(chances: Sequence[float]) -> tuple[float, ...]:
    """Expected accepted tokens of a guess of 1, 2, ... tokens.

    E[accepted of k] = sum over d <= k of the product over i <= d of chance i (Leviathan et al. 2023, by position).
    """
    return tuple(accumulate(accumulate(chances, mul)))


def expected_tried(expected: Sequence[float]) -> tuple[float, ...]:
    """Expected tried tokens of a guess of 1, 2, ... tokens: those of which all before stood. See `AcceptanceWindow`.

    `expected`: see `expected_accepted`.
    """
    return tuple(1.0 + accepted for accepted in (0.0, *expected))[: len(expected)]


def can_pay(costs: CostTable, source: Source, longest: int) -> bool:
    """Whether guesses of the source would be worth their time if nearly every token stood."""
    return choose(costs, {source: (MOST,) * longest}, NO_WINDOW, PLAIN) != PLAIN
