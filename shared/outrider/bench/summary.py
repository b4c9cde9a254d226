"""What the turns of one mode say at one point: pure functions of their samples."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.bench.options import Limits
from outrider.bench.sample import Outcome, Sample, Turn


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of times in seconds. Percentiles interpolate between the two nearest samples, as numpy's and vLLM's do."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One mode at one point. Only completed requests have latencies and tokens; times are in seconds.

    None: nothing to measure it from, or (goodput, per GPU) not asked for.
    """

    requests: int
    completed: int
    refused: int
    failed: int
    errors: dict[str, int]  # of refused and failed ones, how often
    seconds: float  # of all turns together
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float  # all sessions together
    session_tokens_per_s: float | None  # one session, once its first chunk has come
    gpu_tokens_per_s: float | None
    requests_per_s: float
    goodput_per_s: float | None  # completed requests within the limits
    ttft: Distribution | None
    tpot: Distribution | None
    latency: Distribution | None
    chunk_gap: Distribution | None
    send_delay: Distribution | None  # how late the load generator itself was
    acceptance_rate: float | None
    accepted_length: float | None
    wire_bytes_per_token: float | None
    fallbacks: dict[str, int]  # why speculation stopped, and in how many answers


def summarize(turns: Sequence[Turn], limits: Limits, gpus: int | None) -> Summary:
    """The figures of one mode over all of its turns at a point."""
    samples = [sample for turn in turns for sample in turn.samples]
    ended = [pair for turn in turns for pair in turn.completed]
    answers = [answer for _, answer in ended]
    seconds = sum(turn.seconds for turn in turns)
    tokens = sum(answer.completion_tokens for answer in answers)
    good = sum(within(sample, limits) for sample, _ in ended)
    return Summary(
        requests=len(samples),
        completed=len(ended),
        refused=sum(len(turn.ended(Outcome.REFUSED)) for turn in turns),
        failed=sum(len(turn.ended(Outcome.FAILED)) for turn in turns),
        errors=_counted(sample.error for sample in samples),
        seconds=seconds,
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        output_tokens=tokens,
        output_tokens_per_s=_rate(tokens, seconds) or 0.0,
        session_tokens_per_s=_rate(
            sum(sample.later_tokens for sample, _ in ended), sum(sample.decode_s for sample, _ in ended)
        ),
        gpu_tokens_per_s=None if gpus is None else (_rate(tokens, seconds) or 0.0) / gpus,
        requests_per_s=_rate(len(ended), seconds) or 0.0,
        goodput_per_s=(_rate(good, seconds) or 0.0) if limits.given else None,
        ttft=distribution(sample.ttft_s for sample, _ in ended),
        tpot=distribution(sample.tpot_s for sample, _ in ended),
        latency=distribution(sample.latency_s for sample, _ in ended),
        chunk_gap=distribution(gap for sample, _ in ended for gap in sample.gaps_s),
        send_delay=distribution(sample.sent_s - sample.scheduled_s for sample in samples),
        acceptance_rate=_rate(
            sum(answer.accepted_tokens for answer in answers), sum(answer.proposed_tokens for answer in answers)
        ),
        accepted_length=_rate(tokens, sum(answer.rounds for answer in answers)),
        wire_bytes_per_token=_rate(sum(answer.wire_bytes for answer in answers), tokens),
        fallbacks=_counted(answer.fallback_reason for answer in answers),
    )


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Of the values that are there; None where there are none."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if len(present) == 1:
        return Distribution(1, *present * 4)
    cuts = statistics.quantiles(present, n=100, method="inclusive")
    return Distribution(len(present), statistics.fmean(present), cuts[49], cuts[89], cuts[98])


def within(sample: Sample, limits: Limits) -> bool:
    """True if a completed request kept every limit. A time that an answer has not (one chunk: no TPOT) breaks none."""
    pairs = ((sample.ttft_s, limits.ttft_ms), (sample.tpot_s, limits.tpot_ms))
    return all(time is None or limit is None or time * 1000 <= limit for time, limit in pairs)


def _rate(amount: float, per: float) -> float | None:
    return amount / per if per > 0 else None


def _counted(texts: Iterable[str]) -> dict[str, int]:
    return dict(Counter(text for text in texts if text).most_common())
