"""From measured times and played rounds to speed-ups. Pure functions; the definitions are those of docs/control.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from outrider.acceptance.choice import BEGIN_MARGIN
from outrider.acceptance.costs import CostTable
from outrider.acceptance.curve import monotone
from outrider.acceptance.proposal import Source
from outrider.profiling.rounds import Rounds


class Placement(StrEnum):
    """Where the draft runs, seen from the target."""

    SEQUENCE = "sequence"  # a round drafts, then verifies
    HIDDEN = "hidden"  # the draft works ahead on a device of its own while the target verifies


@dataclass(frozen=True, slots=True)
class Forecast:
    """What guesses of one drafter and one length would bring."""

    draft: str
    temperature: float
    sessions: int
    length: int
    placement: Placement
    siblings: int  # beside the chain, where they are best; 0: a chain
    speedup: float  # over plain decoding at the same concurrency


@dataclass(frozen=True, slots=True)
class Pick:
    """The best choice at one concurrency; the speed-up is the geometric mean over the temperatures."""

    sessions: int
    draft: str
    length: int
    siblings: int
    speedup: float

    @property
    def pays(self) -> bool:
        """Whether the coordinator would begin to speculate: its own margin."""
        return self.speedup >= 1.0 + BEGIN_MARGIN


def filled(points: Mapping[int, float], longest: int) -> tuple[float, ...]:
    """Milliseconds for n = 0 to `longest` from those of some n: straight lines between, and never falling.

    Beyond the last point the last line goes on; before the first its value holds.
    """
    known = sorted(points)
    values = [_interpolated(points, known, n) for n in range(longest + 1)]
    return monotone(values, [1.0] * len(values))


def cost_table(
    verify_ms: Mapping[int, float], draft_ms: Mapping[int, float], longest: int, network_ms: float
) -> CostTable:
    """What rounds cost at one concurrency; both calls cross the network once.

    `verify_ms` by proposed tokens, 0 among them; `draft_ms` by drafted tokens, empty for a drafter without a model.
    """
    verify = tuple(time + network_ms for time in filled(verify_ms, longest))
    if not draft_ms:
        return CostTable(verify, (0.0,) * (longest + 1))
    draft = filled({0: 0.0, **draft_ms}, longest)
    return CostTable(verify, (0.0, *(time + network_ms for time in draft[1:])))


def speedup(rounds: Rounds, costs: CostTable, source: Source, placement: Placement) -> float:
    """Time of plain decoding over the time of the played rounds, for the same tokens.

    For rounds of one length k this is rate(k) / rate(0) of `outrider.acceptance.choice`. Raises ZeroDivisionError
    without rounds.
    """
    spent = sum(count * _round_ms(costs, source, shape, placement) for shape, count in rounds.shapes.items())
    return rounds.tokens * costs.plain_ms / spent


def best_by_concurrency(forecasts: Iterable[Forecast]) -> list[Pick]:
    """For each concurrency the guess that is fastest over all temperatures. Pass one placement only."""
    groups: dict[tuple[int, str, int, int], list[float]] = {}
    for each in forecasts:
        groups.setdefault((each.sessions, each.draft, each.length, each.siblings), []).append(each.speedup)
    picks = [Pick(*key, speedup=_geometric_mean(values)) for key, values in groups.items()]
    best: dict[int, Pick] = {}
    for pick in picks:
        if pick.sessions not in best or pick.speedup > best[pick.sessions].speedup:
            best[pick.sessions] = pick
    return [best[sessions] for sessions in sorted(best)]


def crossover(picks: Sequence[Pick]) -> int | None:
    """The concurrency from which nothing pays any more; None if something pays at the largest."""
    found = None
    for pick in reversed(picks):
        if pick.pays:
            break
        found = pick.sessions
    return found


def _round_ms(costs: CostTable, source: Source, shape: tuple[int, int], placement: Placement) -> float:
    depth, nodes = shape
    # Drafting goes by depth, verifying by nodes: a tree has more of these.
    in_sequence = costs.round_ms(source, depth) + costs.verify_ms[nodes] - costs.verify_ms[depth]
    if placement is Placement.SEQUENCE or source is not Source.MODEL:
        return in_sequence
    return max(costs.verify_ms[nodes], costs.draft_ms[depth])


def _interpolated(points: Mapping[int, float], known: Sequence[int], n: int) -> float:
    if n in points or len(known) == 1 or n < known[0]:
        return points.get(n, points[known[0]])
    right = next((place for place, each in enumerate(known) if each > n), len(known) - 1)
    low, high = known[right - 1], known[right]
    return points[low] + (points[high] - points[low]) * (n - low) / (high - low)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
