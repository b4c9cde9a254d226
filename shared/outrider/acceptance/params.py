"""What shapes the target's distribution, and which rule accepts proposals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from outrider.errors import InvalidArgument


class Rule(StrEnum):
    """How a proposal is verified; see `outrider.acceptance.accept`."""

    MATCH = "match"
    REJECTION = "rejection"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request, with the meaning vLLM and OpenAI give them.

    Applied in this order: logit bias, penalties, min_tokens, temperature, min_p, top_k, top_p.
    Penalties count what stands on the tree path above the position: repetition over prompt and output, presence and
    frequency over the output only.
    """

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always taken, so that the seed does not matter."""
        return self.temperature == 0.0

    @property
    def penalized(self) -> bool:
        """True if the distribution depends on counts of earlier tokens."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


MAX_LOGIT_BIAS_ENTRIES = 1024


def validate_params(params: SamplingParams, *, vocabulary_size: int) -> None:
    """Raise InvalidArgument naming the first parameter out of range."""
    _in_range("temperature", params.temperature, 0.0, 100.0)
    if 0.0 < params.temperature < 1e-4:
        raise InvalidArgument("temperature", params.temperature, "0 (greedy) or at least 0.0001")
    if params.top_k < 0:
        raise InvalidArgument("top_k", params.top_k, "0 (all) or more")
    if not 0.0 < params.top_p <= 1.0:
        raise InvalidArgument("top_p", params.top_p, "more than 0 and at most 1")
    _in_range("min_p", params.min_p, 0.0, 1.0)
    if not 0.0 < params.repetition_penalty <= 100.0:
        raise InvalidArgument("repetition_penalty", params.repetition_penalty, "more than 0 and at most 100")
    _in_range("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _in_range("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    if params.min_tokens < 0:
        raise InvalidArgument("min_tokens", params.min_tokens, "0 or more")
    if len(params.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidArgument("logit_bias", len(params.logit_bias), f"at most {MAX_LOGIT_BIAS_ENTRIES} entries")
    for token, bias in params.logit_bias:
        if not 0 <= token < vocabulary_size:
            raise InvalidArgument("logit_bias.token_id", token, f"a token id below {vocabulary_size}")
        _in_range("logit_bias.bias", bias, -100.0, 100.0)


def _in_range(field: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidArgument(field, value, f"from {low:g} to {high:g}")
