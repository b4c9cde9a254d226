"""What a profile found, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.acceptance.proposal import Source
from outrider.profiling.prediction import Forecast, Placement, cost_table, filled, speedup
from outrider.profiling.rounds import ByLength, Rounds, merged
from outrider.profiling.steps import StepTimes
from outrider.profiling.trees import Siblings

Played = Mapping[tuple[float, str], ByLength]
"""Rounds by (temperature, category) and length of the guess."""

NGRAMS = "n-gram"


@dataclass(frozen=True, slots=True)
class Measured:
    """One drafter."""

    name: str
    model: str  # empty for n-grams
    flags: tuple[str, ...]  # of `outrider up`, to serve it
    source: Source
    chains: Played
    trees: Mapping[float, Mapping[tuple[int, int], Rounds]]  # by temperature; length and number of siblings
    siblings: Mapping[float, Siblings]  # where they stand; empty where there are no ranks to know
    beside: Mapping[float, tuple[float, ...]]  # by temperature: see `chances_beside`
    times: StepTimes | None  # None: takes no time worth counting
    trained: bool = False  # by `outrider distill`
    answers: int = 0  # that its rounds were played over

    def pooled(self, temperature: float) -> dict[int, Rounds]:
        """The rounds of all categories with chains, by length."""
        parts = [each for (at, _), each in self.chains.items() if at == temperature]
        lengths = sorted({length for part in parts for length in part})
        return {length: merged(part[length] for part in parts if length in part) for length in lengths}

    @property
    def categories(self) -> list[str]:
        """In alphabetical order."""
        return sorted({category for _, category in self.chains})


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything that was measured."""

    target: str
    target_times: StepTimes
    drafters: tuple[Measured, ...]
    temperatures: tuple[float, ...]
    lengths: tuple[int, ...]
    network_ms: float
    answers: int
    answer_tokens: int
    notes: tuple[str, ...]

    def forecasts(self) -> list[Forecast]:
        """Speed-ups of every drafter, temperature, concurrency, length and placement; trees too."""
        return [
            forecast
            for drafter in self.drafters
            for temperature in self.temperatures
            for forecast in self._forecasts(drafter, temperature)
        ]

    def plain_tokens_per_second(self, temperature: float) -> dict[int, float]:
        """All sessions together, by concurrency."""
        rows = self.target_times.rows(temperature)
        plain = {sessions: filled(row, self.lengths[-1])[0] for sessions, row in rows.items()}
        return {sessions: 1e3 * sessions / (ms + self.network_ms) for sessions, ms in plain.items()}

    def by_category(self, drafter: Measured, temperature: float, length: int, sessions: int = 1) -> dict[str, float]:
        """Speed-up in sequence, by category."""
        verify = self.target_times.rows(temperature)[sessions]
        draft = drafter.times.rows(temperature)[sessions] if drafter.times else {}
        costs = cost_table(verify, draft, self.lengths[-1], self.network_ms)
        return {
            category: speedup(rounds[length], costs, drafter.source, Placement.SEQUENCE)
            for (at, category), rounds in drafter.chains.items()
            if at == temperature and rounds[length].rounds
        }

    def longest_useful(self, drafter: Measured, sessions: int) -> int:
        """Of the best lengths by category and temperature the longest: what the coordinator should be allowed."""
        best: list[int] = []
        for temperature in self.temperatures:
            gains = {length: self.by_category(drafter, temperature, length, sessions) for length in self.lengths}
            for category in gains[self.lengths[0]]:
                best.append(max(self.lengths, key=lambda length: gains[length][category]))
        return max(best)

    def _forecasts(self, drafter: Measured, temperature: float) -> Iterator[Forecast]:
        longest = self.lengths[-1]
        draft_rows = drafter.times.rows(temperature) if drafter.times else None
        for sessions, row in sorted(self.target_times.rows(temperature).items()):
            if draft_rows is not None and sessions not in draft_rows:
                continue
            costs = cost_table(row, draft_rows[sessions] if draft_rows else {}, longest, self.network_ms)
            guesses = {(length, 0): rounds for length, rounds in drafter.pooled(temperature).items()}
            for (length, siblings), rounds in {**guesses, **drafter.trees.get(temperature, {})}.items():
                for placement in Placement:
                    gain = speedup(rounds, costs, drafter.source, placement)
                    yield Forecast(drafter.name, temperature, sessions, length, placement, siblings, gain)


def acceptance_table(drafter: Measured) -> dict[str, Any]:
    """Acceptance by temperature, category and length, for JSON; "all" sums the categories up."""
    found: dict[str, Any] = {}
    for temperature in sorted({at for at, _ in drafter.chains}):
        rows: dict[str, ByLength] = {"all": drafter.pooled(temperature)}
        rows |= {category: drafter.chains[at, category] for at, category in drafter.chains if at == temperature}
        found[f"{temperature:g}"] = {
            category: {
                str(length): {
                    "rounds": rounds.rounds,
                    "proposed": rounds.proposed,
                    "accepted": rounds.accepted,
                    "rate": rounds.rate,
                    "length": rounds.length,
                    "by_position": rounds.chances,
                }
                for length, rounds in by_length.items()
            }
            for category, by_length in rows.items()
        }
    return found
