"""Samples and turns made by hand."""

from __future__ import annotations

from typing import Any

from outrider.bench.sample import Answer, Outcome, Sample, Turn
from outrider.client import Drafter


def answer(tokens: int = 5, digest: str = "same", **fields: Any) -> Answer:
    values = {
        "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": tokens, "rounds": tokens,
        "proposed_tokens": 0, "accepted_tokens": 0, "wire_bytes": 40 * tokens, "fallback_reason": "",
    }  # fmt: skip
    return Answer(**(values | fields), digest=digest)


def sample(number: int, *chunks: tuple[float, int], scheduled: float = 0.0, sent: float = 0.0, **fields: Any) -> Sample:
    """A completed request whose answer had these chunks and ended with the last."""
    tokens = sum(count for _, count in chunks)
    values = {"answer": answer(tokens), "end_s": chunks[-1][0] if chunks else 0.0} | fields
    return Sample(number, 0, "", number, scheduled_s=scheduled, sent_s=sent, chunks=chunks, **values)


def lost(number: int, outcome: Outcome, error: str) -> Sample:
    return sample(number, answer=None, outcome=outcome, error=error)


def turn(*samples: Sample, seconds: float = 1.0, mode: Drafter = Drafter.NONE) -> Turn:
    return Turn(mode, samples, seconds)
