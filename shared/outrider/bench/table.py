"""The report as two tables for a terminal: speed and speculation, then latencies."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from outrider.bench.options import Concurrency, mode_name
from outrider.bench.report import PointReport
from outrider.bench.summary import Distribution, Summary
from outrider.client import Drafter

_LATENCIES = (
    ("time to first token", "ttft"),
    ("time per output token", "tpot"),
    ("between chunks", "chunk_gap"),
    ("whole answer", "latency"),
)


def speed_table(points: Sequence[PointReport]) -> Table:
    """Tokens a second and what speculation did, one row for each point and mode."""
    summaries = [summary for point in points for summary in point.summaries.values()]
    with_gpus = any(summary.gpu_tokens_per_s is not None for summary in summaries)
    with_goodput = any(summary.goodput_per_s is not None for summary in summaries)
    with_lost = any(summary.completed < summary.requests for summary in summaries)
    table = _table(_load(points), "mode")
    headings = ["tokens\n/s", "each\nsession", *(["each\nGPU"] if with_gpus else []), "speed-\nup", "req.\n/s"]
    headings += [
        *(["good\n/s"] if with_goodput else []),
        "accepted",
        "length",
        "bytes/\ntoken",
        *(["done"] if with_lost else []),
    ]
    headings += ["same\nanswer"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        for mode, summary in point.summaries.items():
            cells = [f"{summary.output_tokens_per_s:.1f}", _figure(summary.session_tokens_per_s)]
            cells += [_figure(summary.gpu_tokens_per_s)] if with_gpus else []
            cells += [_speedup(point, mode), f"{summary.requests_per_s:.2f}"]
            cells += [_figure(summary.goodput_per_s, 2)] if with_goodput else []
            cells += _speculation(summary)
            cells += [_done(summary)] if with_lost else []
            table.add_row(_label(point, mode), mode_name(mode), *cells, _identical(point, mode))
        table.add_row()
    return table


def latency_table(points: Sequence[PointReport]) -> Table:
    """Milliseconds; one row for each point, kind of latency and mode."""
    table = _table(_load(points), "milliseconds", "mode")
    for heading in ("mean", "p50", "p90", "p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        for name, field in _LATENCIES:
            for mode, summary in point.summaries.items():
                first = mode is Drafter.NONE
                label = _label(point, mode) if field == "ttft" else ""
                times = _milliseconds(getattr(summary, field))
                table.add_row(label, name if first else "", mode_name(mode), *times)
        table.add_row()
    return table


def legend(points: Sequence[PointReport]) -> str:
    """What the headings mean."""
    closed = any(isinstance(point.point, Concurrency) for point in points)
    speed = "tokens/s of all sessions" if closed else "tokens/s of a session, because the arrivals set the load"
    return (
        f"speed-up: over plain decoding, in {speed}; accepted: guesses that stand; length: tokens for each forward "
        "pass of the target; bytes/token: between the coordinator and the models' services; same answer: as "
        "plain decoding, token by token"
    )


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _load(points: Sequence[PointReport]) -> str:
    return "in\nflight" if isinstance(points[0].point, Concurrency) else "per\nsecond"


def _label(point: PointReport, mode: Drafter) -> str:
    return f"{point.point.value:g}" if mode is Drafter.NONE else ""


def _speedup(point: PointReport, mode: Drafter) -> str:
    value = None if mode is Drafter.NONE else point.speedup(mode).overall
    return "" if value is None else f"{value:.2f}x"


def _speculation(summary: Summary) -> list[str]:
    rate = summary.acceptance_rate
    return [
        "" if rate is None else f"{rate:.0%}",
        _figure(summary.accepted_length, 2),
        _figure(summary.wire_bytes_per_token, 0),
    ]


def _done(summary: Summary) -> str:
    return f"{summary.completed}/{summary.requests}"


def _identical(point: PointReport, mode: Drafter) -> str:
    if mode is Drafter.NONE:
        return ""
    identity = point.comparisons[mode].identity
    if identity is None:
        return "not promised"
    if not identity.compared:
        return ""
    return "NO" if identity.differing else "yes"


def _figure(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _milliseconds(times: Distribution | None) -> list[str]:
    if times is None:
        return [""] * 4
    values = (times.mean, times.p50, times.p90, times.p99)
    return [f"{value * 1000:,.{0 if value >= 0.1 else 1}f}" for value in values]
