"""How long the target takes to judge, and a draft to guess, so many tokens of so many sessions at once.

Timed is what serving does: items go to the core that a verifier or a draft process runs, with a real context in the KV
cache, until every session has its reply; the tokens have then been copied from the device, so it has been waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import Proposal, Source
from outrider.acceptance.tree import TokenTree
from outrider.engine.core import ReplicaCore
from outrider.engine.sessions import ReplicaPeer, Reply, Request
from outrider.engine.verify import VerifyCore
from outrider.engine.worker import DeviceWorker
from outrider.errors import InternalError, ResourceExhausted
from outrider.profiling.budget import plan_row
from outrider.protocol.items import Failed, Key, Open, Propose, Verify

Progress = Callable[[int, int], None]
"""Told after each row of the grid: how many there are, how many were wanted."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The samples of one point of the grid."""

    temperature: float
    sessions: int
    tokens: int  # proposed tokens that are judged, or tokens that are drafted
    samples_ms: tuple[float, ...]

    @property
    def ms(self) -> float:
        """The median."""
        return median(self.samples_ms)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The grid of one model."""

    model: str
    context: int
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]  # what was left out, and why

    def rows(self, temperature: float) -> dict[int, dict[int, float]]:
        """Median milliseconds by sessions and tokens."""
        found: dict[int, dict[int, float]] = {}
        for cell in self.cells:
            if cell.temperature == temperature:
                found.setdefault(cell.sessions, {})[cell.tokens] = cell.ms
        return found

    @property
    def spread(self) -> float:
        """Median over the cells of (largest - smallest) / median: how quiet the machine was."""
        spreads = [(max(c.samples_ms) - min(c.samples_ms)) / c.ms for c in self.cells]
        return median(spreads)


class StepTimer:
    """Opens sessions on a core and times their rounds. `close` frees them."""

    def __init__(self, core: ReplicaCore[Any], text: Sequence[int], context: int) -> None:
        """`text`: what the sessions' contexts are made of, at least one token. `context`: tokens of each of them."""
        self._core, self._context = core, context
        self._text = tuple(text[n % len(text)] for n in range(max(context, core.max_proposal)))
        info = core.engine.info
        self._peer: ReplicaPeer = DeviceWorker(core).connect(
            "profile", lambda replies: None, vocabulary_size=info.vocabulary_size
        )
        self._epoch = 0

    @property
    def room(self) -> int:
        """How many sessions fit into the KV cache when nothing else is in it."""
        block = self._core.engine.options.block_size
        return self._core.engine.capacity_tokens // (-(-self._max_length // block) * block)

    def open(self, count: int, temperature: float) -> float:
        """Open so many sessions in the place of those before, and prefill them; seconds that took."""
        begin = time.perf_counter()
        self.close()
        self._epoch += 1
        params = SamplingParams(temperature=temperature)
        for number in range(count):
            tokens = self._tokens(number)
            key = Key(number, self._epoch, self._context)
            opened = Open(key, tokens, self._context, self._max_length, params, Rule.MATCH, seed=number)
            self._check(self._core.handle(self._peer, opened))
        while self._core.busy:
            self._core.step()
        return time.perf_counter() - begin

    def time(self, count: int, tokens: int) -> float:
        """Milliseconds of one round of the first `count` sessions: judging, or drafting, `tokens` tokens of each."""
        items = [self._item(number, tokens) for number in range(count)]
        begin = time.perf_counter()
        for item in items:
            self._check(self._core.handle(self._peer, item))
        replies = 0
        while replies < count:
            for _, reply in self._core.step():
                self._check(reply)
                replies += 1
        return (time.perf_counter() - begin) * 1e3

    def close(self) -> None:
        """Free all sessions; their full blocks stay in the prefix cache."""
        self._core.drop_peer(self._peer)

    @property
    def _max_length(self) -> int:
        return self._context + self._core.max_proposal

    def _tokens(self, number: int) -> tuple[int, ...]:
        """Contexts begin with different tokens, so that no session shares another's KV."""
        return (number % self._core.engine.info.vocabulary_size, *self._text[: self._context - 1])

    def _item(self, number: int, tokens: int) -> Request:
        # The history never moves on: each round drops what the last one computed, the context's last token included.
        key = Key(number, self._epoch, self._context)
        if not isinstance(self._core, VerifyCore):
            return Propose(key, self._context, (), tokens)
        guess = Proposal(TokenTree.chain(self._text[:tokens]), Source.NGRAM)
        return Verify(key, self._context, (), guess)

    def _check(self, reply: Reply | None) -> None:
        if isinstance(reply, Failed):
            raise InternalError(f"{self._core.engine.info.name} failed while it was timed: {reply.message}")


@dataclass(frozen=True, slots=True)
class Grid:
    """What is to be timed."""

    temperatures: tuple[float, ...]
    sessions: tuple[int, ...]  # ascending
    tokens: tuple[int, ...]  # ascending
    repeats: int


def measure(name: str, timer: StepTimer, grid: Grid, context: int, budget_s: float, progress: Progress) -> StepTimes:
    """Time the grid, one concurrency after the other, as finely as fits into `budget_s` seconds.

    Raises ResourceExhausted if the KV cache has no room for one session.
    """
    if timer.room < 1:
        raise ResourceExhausted(f"the KV cache of {name} has no room for a context of {context} tokens")
    deadline = time.monotonic() + budget_s
    cells: list[Cell] = []
    notes: list[str] = []
    call_s: Mapping[int, float] = {}
    prepare_s, done = 0.0, 0
    for place, count in enumerate(grid.sessions):
        if count > timer.room:
            notes.append(f"{name}: memory for {timer.room} sessions of {context} tokens, so not more were timed")
            break
        growth = count / done if done else 1.0
        if not done:
            prepare_s = timer.open(1, grid.temperatures[0])
            timer.time(1, grid.tokens[-1])  # the very first pass says nothing
            call_s = dict.fromkeys(grid.tokens, timer.time(1, grid.tokens[-1]) / 1e3)
        plan = plan_row(
            {n: s * growth * len(grid.temperatures) for n, s in call_s.items()},
            grid.tokens,
            grid.repeats,
            deadline - time.monotonic(),
            prepare_s=prepare_s * growth * len(grid.temperatures),
            more=place + 1 < len(grid.sessions),
        )
        if plan is None and done:
            notes.append(f"{name}: no time for {count} and more sessions at once (--budget-s)")
            break
        tokens = plan.tokens if plan else (grid.tokens[0], grid.tokens[-1])
        repeats = plan.repeats if plan else 1
        if (tokens, repeats) != (grid.tokens, grid.repeats):
            counted = ", ".join(map(str, tokens))
            notes.append(f"{name}, {count} at once: only {counted} tokens timed, {repeats} times each (--budget-s)")
        for temperature in grid.temperatures:
            prepare_s = timer.open(count, temperature)
            cells += _row(timer, temperature, count, tokens, repeats, deadline)
        call_s = _expected(cells, count, grid.tokens)
        done = count
        progress(place + 1, len(grid.sessions))
    timer.close()
    return StepTimes(name, context, tuple(cells), tuple(notes))


def _row(
    timer: StepTimer, temperature: float, count: int, tokens: Sequence[int], repeats: int, deadline: float
) -> list[Cell]:
    """One concurrency. Lengths take turns, so that a drift of the machine meets all of them."""
    samples: dict[int, list[float]] = {n: [] for n in tokens}
    for sweep in range(repeats + 1):
        if sweep > 1 and time.monotonic() > deadline:
            break
        for n in tokens:
            taken = timer.time(count, n)
            if sweep:  # the first one warms up
                samples[n].append(taken)
    return [Cell(temperature, count, n, tuple(values)) for n, values in samples.items()]


def _expected(cells: Sequence[Cell], count: int, tokens: Sequence[int]) -> dict[int, float]:
    """Seconds a call for each of `tokens`, from the cells of one concurrency: of the next one timed at or above it."""
    found: dict[int, list[float]] = {}
    for cell in cells:
        if cell.sessions == count:
            found.setdefault(cell.tokens, []).append(cell.ms / 1e3)
    return {n: max(found[min(m for m in found if m >= n)]) for n in tokens}


def seconds_per_token(times: StepTimes) -> tuple[int, float]:
    """The concurrency at which plain decoding makes most tokens a second, and the seconds that each takes there."""
    rows = times.rows(times.cells[0].temperature)
    sessions = min(rows, key=lambda count: rows[count][0] / count)
    return sessions, rows[sessions][0] / sessions / 1e3
