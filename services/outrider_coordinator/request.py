"""One request, checked: everything the coordinator needs to know to run it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outrider.acceptance.params import Rule, SamplingParams, validate_params
from outrider.acceptance.stopping import StopConditions
from outrider.errors import InvalidArgument
from outrider.protocol.items import ModelInfo

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_STOP_IDS = 256
MAX_LOGPROBS = 20
MAX_DRAFT_TOKENS = 63
MAX_REQUEST_ID_LENGTH = 128
MAX_SESSION_ID_LENGTH = 128
MAX_CHAT_MESSAGES = 2048


class DrafterKind(StrEnum):
    """Where guesses come from."""

    NONE = "none"
    NGRAM = "ngram"
    MODEL = "model"
    AUTO = "auto"  # each round what is expected to be fastest


class TreeMode(StrEnum):
    """When to propose trees: further tokens for the places of a draft model's guess."""

    OFF = "off"
    AUTO = "auto"
    ON = "on"


class LookAheadMode(StrEnum):
    """When to draft ahead."""

    OFF = "off"
    AUTO = "auto"
    ON = "on"


@dataclass(frozen=True, slots=True)
class Speculation:
    """How to speculate."""

    drafter: DrafterKind
    max_draft_tokens: int  # longest guess per round
    rule: Rule
    fixed_length: bool = False  # guess that much in every round, whatever comes of it


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a request may ask for, beside what the target's context allows."""

    max_prompt_bytes: int = 1 << 20  # of text: the tokenizer does not see more
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A validated generation request."""

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    conditions: StopConditions
    seed: int  # unsigned 64 bits
    logprobs: int | None
    speculation: Speculation
    tenant: str = ""  # whose it is: tenants share neither cached prompts nor request ids nor conversations
    session_id: str = ""  # the conversation it is a turn of; empty: of none

    @property
    def max_length(self) -> int:
        """Most tokens the session can hold: prompt and longest answer."""
        return min(len(self.prompt) + self.conditions.max_tokens, self.conditions.max_length)


def validate(request: Request, target: ModelInfo, limits: Limits) -> None:
    """Raise InvalidArgument naming the first field the target cannot serve, or the limits forbid."""
    context, vocabulary = target.context_length, target.vocabulary_size
    if not request.prompt:
        raise InvalidArgument("input", "empty", "at least 1 token long")
    if len(request.prompt) >= context:
        raise InvalidArgument("input", f"{len(request.prompt)} tokens", f"shorter than the context, {context}")
    if limits.max_prompt_tokens is not None and len(request.prompt) > limits.max_prompt_tokens:
        raise InvalidArgument("input", f"{len(request.prompt)} tokens", f"at most {limits.max_prompt_tokens} tokens")
    if limits.max_output_tokens is not None and request.conditions.max_tokens > limits.max_output_tokens:
        raise InvalidArgument("max_tokens", request.conditions.max_tokens, f"at most {limits.max_output_tokens}")
    for index, token in enumerate(request.prompt):
        if not 0 <= token < vocabulary:
            raise InvalidArgument(f"token_ids[{index}]", token, f"a token id below {vocabulary}")
    if len(request.request_id) > MAX_REQUEST_ID_LENGTH:
        raise InvalidArgument("request_id", request.request_id, f"at most {MAX_REQUEST_ID_LENGTH} characters long")
    if len(request.session_id) > MAX_SESSION_ID_LENGTH:
        raise InvalidArgument("session_id", request.session_id, f"at most {MAX_SESSION_ID_LENGTH} characters long")
    validate_params(request.params, vocabulary_size=vocabulary)
    _validate_stopping(request, vocabulary)
    if request.logprobs is not None and request.logprobs > MAX_LOGPROBS:
        raise InvalidArgument("logprobs", request.logprobs, f"at most {MAX_LOGPROBS}")
    if request.speculation.max_draft_tokens > MAX_DRAFT_TOKENS:
        limit = f"at most {MAX_DRAFT_TOKENS}"
        raise InvalidArgument("speculation.max_draft_tokens", request.speculation.max_draft_tokens, limit)


def _validate_stopping(request: Request, vocabulary: int) -> None:
    conditions = request.conditions
    if conditions.max_tokens < 1:
        raise InvalidArgument("max_tokens", conditions.max_tokens, "at least 1")
    if request.params.min_tokens > conditions.max_tokens:
        raise InvalidArgument("min_tokens", request.params.min_tokens, f"at most max_tokens, {conditions.max_tokens}")
    if len(conditions.stop_strings) > MAX_STOP_STRINGS:
        raise InvalidArgument("stop", f"{len(conditions.stop_strings)} strings", f"at most {MAX_STOP_STRINGS}")
    for index, stop in enumerate(conditions.stop_strings):
        if not 0 < len(stop) <= MAX_STOP_LENGTH:
            raise InvalidArgument(f"stop[{index}]", stop, f"from 1 to {MAX_STOP_LENGTH} characters long")
    if len(conditions.stop_token_ids) > MAX_STOP_IDS:
        raise InvalidArgument("stop_token_ids", f"{len(conditions.stop_token_ids)} ids", f"at most {MAX_STOP_IDS}")
    for token in conditions.stop_token_ids:
        if not 0 <= token < vocabulary:
            raise InvalidArgument("stop_token_ids", token, f"a token id below {vocabulary}")
