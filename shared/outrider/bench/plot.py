"""The report as a picture: throughput, speed-up and two latencies over the load."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outrider.bench.options import Concurrency, mode_name
from outrider.bench.report import PointReport
from outrider.bench.summary import Distribution, Summary
from outrider.client import Drafter

COLOURS = {Drafter.NONE: "#8a8a8a", Drafter.AUTO: "#2a6f97", Drafter.MODEL: "#c8553d", Drafter.NGRAM: "#5b8c5a"}
_Pick = Callable[[Summary], float | None]


def plot_report(points: Sequence[PointReport], title: str, path: Path) -> Path | None:
    """Write a PNG; None, and nothing else, where matplotlib is not installed (`pip install 'outrider[plot]'`)."""
    if importlib.util.find_spec("matplotlib") is None or not points:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    figure.suptitle(title)
    (throughput, speedup), (first, each) = figure.subplots(2, 2)
    _lines(throughput, points, lambda summary: summary.output_tokens_per_s)
    throughput.set_title("output tokens/s, all sessions")
    throughput.legend(loc="lower right")
    _speedups(speedup, points)
    _latencies(first, points, lambda summary: summary.ttft)
    first.set_title("time to first token, ms: median, band to p99")
    _latencies(each, points, lambda summary: summary.tpot)
    each.set_title("time per output token, ms: median, band to p99")
    closed = isinstance(points[0].point, Concurrency)
    for axis in (throughput, speedup, first, each):
        axis.set_xticks(range(len(points)), [f"{point.point.value:g}" for point in points])
        axis.set_xlim(-0.4, len(points) - 0.6)
        axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
        axis.set_xlabel("requests in flight" if closed else "requests per second")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)
    return path


def _lines(axis: Any, points: Sequence[PointReport], pick: _Pick) -> None:
    for mode in points[0].summaries:
        places, values = _present([pick(point.summaries[mode]) for point in points])
        axis.plot(places, values, marker="o", color=COLOURS[mode], label=mode_name(mode))


def _latencies(axis: Any, points: Sequence[PointReport], pick: Callable[[Summary], Distribution | None]) -> None:
    def milliseconds(share: str) -> _Pick:
        return lambda summary: None if (times := pick(summary)) is None else getattr(times, share) * 1000

    _lines(axis, points, milliseconds("p50"))
    for mode in points[0].summaries:
        places, low = _present([milliseconds("p50")(point.summaries[mode]) for point in points])
        _, high = _present([milliseconds("p99")(point.summaries[mode]) for point in points])
        if len(places) > 1:
            axis.fill_between(places, low, high, color=COLOURS[mode], alpha=0.15, linewidth=0)
        else:
            axis.vlines(places, low, high, color=COLOURS[mode], alpha=0.4)


def _speedups(axis: Any, points: Sequence[PointReport]) -> None:
    """Each turn as a dot, so that a difference smaller than their spread is not taken for one."""
    axis.axhline(1, color=COLOURS[Drafter.NONE], linewidth=1)
    for mode in points[0].comparisons:
        places, values = _present([point.speedup(mode).overall for point in points])
        axis.plot(places, values, marker="o", color=COLOURS[mode], label=mode_name(mode))
        for place, point in enumerate(points):
            turns = [value for value in point.speedup(mode).turns if value is not None]
            axis.scatter([place] * len(turns), turns, s=14, color=COLOURS[mode], alpha=0.45)
    whose = "all sessions" if isinstance(points[0].point, Concurrency) else "each session"
    axis.set_title(f"speed-up over plain, {whose}; dots: single turns")


def _present(values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    """The places and values of what was measurable."""
    pairs = [(place, value) for place, value in enumerate(values) if value is not None]
    return [place for place, _ in pairs], [value for _, value in pairs]
