"""The whole run: every point, and at every point the modes in turns, so that a drift of the machine meets all alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from outrider.bench.arrivals import poisson_arrivals
from outrider.bench.load import Load
from outrider.bench.options import BenchOptions, Concurrency, Point, mode_name
from outrider.bench.prompts import Request, RequestList
from outrider.bench.sample import Outcome, Turn
from outrider.client import AsyncClient, Drafter
from outrider.errors import FailedPrecondition
from outrider.prompts import Prompt


@dataclass(frozen=True, slots=True)
class PointResult:
    """One point of the sweep with all modes."""

    point: Point
    turns: tuple[Turn, ...]  # in the order in which they ran

    def of(self, mode: Drafter) -> tuple[Turn, ...]:
        """The turns of one mode; the n-th ones of two modes sent the same requests."""
        return tuple(turn for turn in self.turns if turn.mode is mode)


async def sweep(
    client: AsyncClient, options: BenchOptions, prompts: Sequence[Prompt], progress: Callable[[str], None]
) -> AsyncIterator[PointResult]:
    """The results, point by point. Raises FailedPrecondition where a warm-up request fails other than by refusal.

    `progress` is told what is done now. Counted requests take up the list of prompts where the last point left off.
    """
    runner = _Runner(Load(client, options.request, options.timeout_s), options)
    requests = RequestList(prompts, options.seed)
    counted, warmed_up = 0, 0
    for point in options.points:
        warmed_up += options.warm_up_at(point)
        for mode in options.modes:
            progress(f"{point.label}: warming up, {mode_name(mode)}")
            await runner.warm_up(mode, requests.span(-warmed_up, options.warm_up_at(point)))
        turns: list[Turn] = []
        for number, size in enumerate(options.turn_sizes(point)):
            span = requests.span(counted, size)
            counted += size
            for mode in options.modes if number % 2 == 0 else options.modes[::-1]:
                progress(f"{point.label}: turn {number + 1} of {options.turns}, {mode_name(mode)}, {size} requests")
                turns.append(await runner.turn(mode, point, number, span))
        yield PointResult(point, tuple(turns))


class _Runner:
    """One mode's requests at one point."""

    def __init__(self, load: Load, options: BenchOptions) -> None:
        self._load = load
        self._options = options

    async def turn(self, mode: Drafter, point: Point, number: int, requests: Sequence[Request]) -> Turn:
        """The counted requests of turn `number`; every mode gets the same arrival times."""
        if isinstance(point, Concurrency):
            return await self._load.closed_loop(mode, requests, point.sessions)
        key = f"arrivals {self._options.seed} {number}"
        arrivals = poisson_arrivals(len(requests), point.per_second, key)
        return await self._load.open_loop(mode, requests, arrivals)

    async def warm_up(self, mode: Drafter, requests: Sequence[Request]) -> None:
        """Requests that are not counted, all at the same time."""
        turn = await self._load.closed_loop(mode, requests, len(requests))
        for sample in turn.ended(Outcome.FAILED):
            raise FailedPrecondition(f"a warm-up request failed: {sample.error}")
