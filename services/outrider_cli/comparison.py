"""The demo's measurement: the same request with every drafter, timed at the client."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outrider.client import Client, Completion, Drafter, RequestOptions

DRAFTER_NAMES = {Drafter.NONE: "plain", Drafter.NGRAM: "n-gram", Drafter.MODEL: "draft model", Drafter.AUTO: "auto"}
DRAFTERS = tuple(DRAFTER_NAMES)
NOISE = 0.05
"""Differences below this fraction are not called a difference."""


@dataclass(frozen=True, slots=True)
class Run:
    """One request as its client saw it."""

    drafter: Drafter
    completion: Completion
    first_chunk_s: float
    first_chunk_tokens: int
    total_s: float

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: tokens after the first chunk over the time after it, so the prompt's time is left out."""
        tokens, seconds = len(self.completion.token_ids) - self.first_chunk_tokens, self.total_s - self.first_chunk_s
        return tokens / seconds if tokens > 0 and seconds > 0 else 0.0

    @property
    def wire_bytes_per_token(self) -> float:
        """Bytes between coordinator and replicas, both ways and with the prompt's, per token of the answer."""
        return self.completion.speculation.wire_bytes / max(1, len(self.completion.token_ids))

    def as_json(self) -> dict[str, Any]:
        """What was measured, and the raw timings it comes from."""
        return {
            "drafter": self.drafter,
            "tokens_per_second": self.tokens_per_second,
            "wire_bytes_per_token": self.wire_bytes_per_token,
            "first_chunk_s": self.first_chunk_s,
            "first_chunk_tokens": self.first_chunk_tokens,
            "total_s": self.total_s,
            "text": self.completion.text,
            "token_ids": self.completion.token_ids,
            "usage": asdict(self.completion.usage),
            "speculation": asdict(self.completion.speculation),
            "service_timings": asdict(self.completion.timings),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every run of one prompt."""

    name: str
    prompt: str
    runs: tuple[Run, ...]  # `repeats` for each drafter, taken in turns

    def of(self, drafter: Drafter) -> tuple[Run, ...]:
        """The runs of one drafter."""
        return tuple(run for run in self.runs if run.drafter is drafter)

    @property
    def plain(self) -> Run:
        """The first run without speculation: the answer that all others must give."""
        return self.of(Drafter.NONE)[0]

    def speed(self, drafter: Drafter) -> float:
        """Median tokens per second."""
        return statistics.median(run.tokens_per_second for run in self.of(drafter))

    def speedup(self, drafter: Drafter) -> float:
        """How many times as fast as plain decoding; 0 where that was not measurable."""
        plain = self.speed(Drafter.NONE)
        return self.speed(drafter) / plain if plain > 0 else 0.0

    def identical(self, drafter: Drafter) -> bool:
        """True if every run of the drafter gave exactly the plain answer, token by token."""
        plain = self.plain.completion
        return all(
            (run.completion.token_ids, run.completion.text) == (plain.token_ids, plain.text) for run in self.of(drafter)
        )

    def as_json(self) -> dict[str, Any]:
        """The comparison with all of its runs."""
        return {
            "name": self.name,
            "prompt": self.prompt,
            "answer": self.plain.completion.text,
            "drafters": {
                drafter: {
                    "tokens_per_second": self.speed(drafter),
                    "speedup": self.speedup(drafter),
                    "identical": self.identical(drafter),
                }
                for drafter in DRAFTERS
            },
            "runs": [run.as_json() for run in self.runs],
        }


def compare(
    client: Client,
    name: str,
    prompt: str,
    options: RequestOptions,
    *,
    repeats: int,
    timeout: float,
    progress: Callable[[str], None],
) -> Comparison:
    """Run `prompt` with every drafter, `repeats` times in turns; a drift of the machine then meets all alike."""
    runs = []
    for _ in range(repeats):
        for drafter in DRAFTERS:
            progress(f"{name}: {DRAFTER_NAMES[drafter]}")
            runs.append(timed(client, prompt, {**options, "drafter": drafter}, timeout))
    return Comparison(name, prompt, tuple(runs))


def timed(client: Client, prompt: str, options: RequestOptions, timeout: float) -> Run:
    """One request, timed from the call to the first chunk with tokens and to the end of the answer."""
    messages: RequestOptions = {**options, "messages": [{"role": "user", "content": prompt}]}
    first_chunk_s, first_chunk_tokens = 0.0, 0
    begin = time.perf_counter()
    with client.stream(timeout=timeout, **messages) as stream:
        for chunk in stream:
            if not first_chunk_tokens and chunk.token_ids:
                first_chunk_s, first_chunk_tokens = time.perf_counter() - begin, len(chunk.token_ids)
        total_s = time.perf_counter() - begin
        return Run(Drafter(options["drafter"]), stream.result, first_chunk_s, first_chunk_tokens, total_s)


def verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """What the numbers say of each drafter over all prompts, in plain words."""
    lines = []
    for drafter in (drafter for drafter in DRAFTERS[1:] if comparisons[0].of(drafter)):
        speedups = [comparison.speedup(drafter) for comparison in comparisons]
        each = ", ".join(f"{comparison.name} {comparison.speedup(drafter):.2f}x" for comparison in comparisons)
        lines.append(f"{DRAFTER_NAMES[drafter]}: {_judge(speedups)} ({each})")
    return lines


def _judge(speedups: Sequence[float]) -> str:
    if min(speedups) <= 0:
        return "too few tokens to tell"
    speedup = statistics.geometric_mean(speedups)
    if speedup > 1 + NOISE:
        return f"{speedup:.2f} times as fast as plain decoding"
    if speedup < 1 - NOISE:
        return f"slower than plain decoding here, {speedup:.2f} times its speed"
    return "as fast as plain decoding here"
