"""What a run found, as plain values and as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider.acceptance.params import Rule
from outrider.bench.comparison import Comparison, Ratio, compare
from outrider.bench.options import BenchOptions, Concurrency, Point
from outrider.bench.sample import Turn
from outrider.bench.summary import Summary, summarize
from outrider.bench.sweep import PointResult
from outrider.client import Drafter
from outrider.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class PointReport:
    """One point: every mode's figures, and each speculative mode over plain decoding."""

    point: Point
    summaries: dict[Drafter, Summary]
    comparisons: dict[Drafter, Comparison]
    turns: tuple[Turn, ...]

    def speedup(self, mode: Drafter) -> Ratio:
        """Of all sessions together in a closed loop, of one session where the load is set by the arrivals."""
        comparison = self.comparisons[mode]
        closed = isinstance(self.point, Concurrency)
        return comparison.output_tokens_per_s if closed else comparison.session_tokens_per_s

    def as_json(self) -> dict[str, Any]:
        """Figures first, then every sample they come from."""
        kind = "concurrency" if isinstance(self.point, Concurrency) else "request_rate"
        return {
            kind: self.point.value,
            "modes": {mode: asdict(summary) for mode, summary in self.summaries.items()},
            "over_plain": {mode: asdict(comparison) for mode, comparison in self.comparisons.items()},
            "turns": [turn.as_json() for turn in self.turns],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run, or as much of it as there is yet."""

    about: dict[str, Any]  # when, command, hardware, versions, service
    options: BenchOptions
    points: tuple[PointReport, ...]

    @property
    def failed(self) -> int:
        """Requests that neither completed nor were refused."""
        return sum(summary.failed for point in self.points for summary in point.summaries.values())

    @property
    def differing(self) -> int:
        """Answers that speculation changed although the rule promises that it does not."""
        found = [comparison.identity for point in self.points for comparison in point.comparisons.values()]
        return sum(len(identity.differing) for identity in found if identity is not None)

    def as_json(self) -> dict[str, Any]:
        """Times are in seconds, except for the limits."""
        return {
            **self.about,
            "seed": self.options.seed,
            "options": asdict(self.options),
            "failed": self.failed,
            "differing": self.differing,
            "points": [point.as_json() for point in self.points],
        }

    def save(self, path: Path) -> None:
        """Write it as JSON; a crash meanwhile leaves what was there before. Raises InvalidArgument."""
        part = path.with_suffix(".part")
        try:
            part.write_text(json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(part, path)
        except OSError as error:
            raise InvalidArgument("out", str(path), f"a file that can be written ({error})") from error


def report_point(result: PointResult, options: BenchOptions, rule: Rule) -> PointReport:
    """`rule`: the acceptance rule in effect; only `match` promises the answers of plain decoding."""
    plain = result.of(Drafter.NONE)
    promised = rule is Rule.MATCH
    return PointReport(
        result.point,
        {mode: summarize(result.of(mode), options.limits, options.gpus) for mode in options.modes},
        {mode: compare(plain, result.of(mode), promised=promised) for mode in options.drafters},
        result.turns,
    )
