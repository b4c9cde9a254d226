"""One request as its client saw it, and one turn of requests. Times are seconds since the turn began."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from outrider.client import Completion, Drafter


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    REFUSED = "refused"  # RESOURCE_EXHAUSTED: the service had no room
    FAILED = "failed"  # anything else


@dataclass(frozen=True, slots=True)
class Answer:
    """What a finished answer says of itself."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in the prefix cache
    completion_tokens: int
    rounds: int
    proposed_tokens: int
    accepted_tokens: int
    wire_bytes: int
    fallback_reason: str
    digest: str  # of text and token ids: equal where both are

    @classmethod
    def of(cls, completion: Completion) -> Answer:
        """The counts of a completion."""
        usage, stats = completion.usage, completion.speculation
        content = json.dumps([completion.text, completion.token_ids]).encode()
        return cls(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            rounds=stats.rounds,
            proposed_tokens=stats.proposed_tokens,
            accepted_tokens=stats.accepted_tokens,
            wire_bytes=stats.wire_bytes,
            fallback_reason=stats.fallback_reason,
            digest=hashlib.sha256(content).hexdigest()[:16],
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Its latencies count from `scheduled_s`, when it should have been sent, not from when it was."""

    number: int  # which request of the sweep
    prompt: int  # which prompt of the list
    category: str
    seed: int
    scheduled_s: float
    sent_s: float
    end_s: float
    chunks: tuple[tuple[float, int], ...]  # when each chunk with tokens came, and how many it had
    answer: Answer | None = None  # of a completed request
    outcome: Outcome = Outcome.COMPLETED
    error: str = ""

    @property
    def latency_s(self) -> float:
        """From the scheduled arrival to the end of the answer."""
        return self.end_s - self.scheduled_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: from the scheduled arrival to the first chunk that had one."""
        return self.chunks[0][0] - self.scheduled_s if self.chunks else None

    @property
    def later_tokens(self) -> int:
        """Tokens after the first chunk, those that `decode_s` was needed for."""
        return sum(tokens for _, tokens in self.chunks[1:])

    @property
    def decode_s(self) -> float:
        """Time from the first chunk to the last."""
        return self.chunks[-1][0] - self.chunks[0][0] if self.chunks else 0.0

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first chunk; None for an answer of one chunk."""
        return self.decode_s / self.later_tokens if self.later_tokens else None

    @property
    def gaps_s(self) -> list[float]:
        """Times between chunks."""
        return [after - before for (before, _), (after, _) in pairwise(self.chunks)]

    def as_json(self) -> dict[str, Any]:
        """Everything that was recorded, to the microsecond."""
        times = {name: round(getattr(self, name), 6) for name in ("scheduled_s", "sent_s", "end_s")}
        return asdict(self) | times | {"chunks": [[round(time, 6), tokens] for time, tokens in self.chunks]}


@dataclass(frozen=True, slots=True)
class Turn:
    """Requests of one mode, sent in one go."""

    mode: Drafter
    samples: tuple[Sample, ...]
    seconds: float  # from the start to the end of the last request

    def ended(self, outcome: Outcome) -> list[Sample]:
        """The samples with that outcome."""
        return [sample for sample in self.samples if sample.outcome is outcome]

    @property
    def completed(self) -> list[tuple[Sample, Answer]]:
        """The finished requests with their answers."""
        return [(sample, sample.answer) for sample in self.samples if sample.answer is not None]

    def as_json(self) -> dict[str, Any]:
        """The turn with all of its samples."""
        return {
            "mode": self.mode,
            "seconds": round(self.seconds, 6),
            "samples": [sample.as_json() for sample in self.samples],
        }
