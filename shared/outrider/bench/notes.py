"""What a table of figures would hide, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.bench.options import mode_name
from outrider.bench.report import PointReport
from outrider.bench.summary import Summary

LATE_S = 0.05
"""Where more than 1 in 100 requests leave later than this, the load generator is too slow for the load."""
MAX_NUMBERS = 10


def notes(points: tuple[PointReport, ...]) -> list[str]:
    """What was refused or failed, what differs, where speculation stopped, what not to trust; empty at best."""
    return [f"{report.point.label}, {line}" for report in points for line in _of_point(report)]


def _of_point(report: PointReport) -> Iterator[str]:
    for mode, summary in report.summaries.items():
        yield from (f"{mode_name(mode)}: {line}" for line in _of_mode(summary))
    for mode, comparison in report.comparisons.items():
        turns = [ratio for ratio in report.speedup(mode).turns if ratio is not None]
        if turns and min(turns) < 1 < max(turns):
            each = ", ".join(f"{ratio:.2f}x" for ratio in turns)
            yield f"{mode_name(mode)}: the turns disagree about the speed-up ({each}); more --requests would tell"
        identity = comparison.identity
        if identity is not None and identity.differing:
            numbers = ", ".join(map(str, identity.differing[:MAX_NUMBERS]))
            more = "" if len(identity.differing) <= MAX_NUMBERS else ", ..."
            count = f"{len(identity.differing)} of {identity.compared}"
            yield f"{mode_name(mode)}: {count} answers are not those of plain decoding (requests {numbers}{more})"


def _of_mode(summary: Summary) -> Iterator[str]:
    if summary.refused:
        yield f"{summary.refused} of {summary.requests} requests were refused"
    if summary.failed:
        yield f"{summary.failed} of {summary.requests} requests failed"
    yield from (f"{count} x {error}" for error, count in summary.errors.items())
    yield from (f"speculation stopped in {count} answers: {why}" for why, count in summary.fallbacks.items())
    if summary.send_delay is not None and summary.send_delay.p99 > LATE_S:
        late = f"{summary.send_delay.p99 * 1000:.0f} ms"
        yield f"requests left up to {late} late (p99), so this machine is too busy to make that load"
