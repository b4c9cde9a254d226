"""What the client gives back: plain, frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outrider.acceptance.params import Rule
from outrider.protocol.items import ModelInfo


class Drafter(StrEnum):
    """Where guesses come from. None of them changes the answer under the `match` rule."""

    NONE = "none"  # plain decoding
    NGRAM = "ngram"  # prompt lookup in the session's own tokens
    MODEL = "model"  # a draft model
    AUTO = "auto"  # each round n-grams, the draft model or nothing: what is expected to be fastest


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"  # an end-of-sequence token, a stop string or a stop id
    LENGTH = "length"  # max_tokens or the context length
    ABORT = "abort"  # someone aborted it


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens at a position."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The emitted token's logprob (natural logarithm, before temperature) and the likeliest alternatives."""

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer; all pieces together are the whole.

    `text` may lag behind `token_ids` while a character or a stop string is incomplete.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token id, if asked for


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens a request took."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens whose KV was there already: of the last turn, or of a prompt that began alike


@dataclass(frozen=True, slots=True)
class SourceStats:
    """What one source of guesses did in one answer."""

    source: Drafter
    rounds: int
    proposed_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """How well the guesses of one answer did."""

    rounds: int  # forward passes of the target after the prompt's
    proposed_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None  # accepted / proposed; None when nothing was proposed
    accepted_length: float  # committed tokens per round
    wire_bytes: int  # between coordinator and replicas, both ways
    drafter: Drafter
    rule: Rule
    fallback_reason: str  # why speculation stopped early, or for a while; empty if it did not
    plain_rounds: int = 0  # rounds without a guess
    sources: tuple[SourceStats, ...] = ()  # one for each that guessed anything
    look_ups: int = 0  # rounds that something had been drafted ahead for
    hits: int = 0  # those whose outcome was foreseen
    drafted_ahead_tokens: int = 0
    sibling_tokens: int = 0  # proposed for the same places as `proposed_tokens`


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds since the coordinator received the request."""

    queued_s: float
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer. With the same `seed`, the same request gives the same answer."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # one per token id, or empty
    finish_reason: FinishReason
    stop: str | int | None  # the stop string or id that ended the answer, if one did
    usage: Usage
    seed: int
    speculation: SpeculationStats
    timings: Timings


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a service speculates for requests that do not say."""

    drafter: Drafter
    max_draft_tokens: int | None
    rule: Rule
    fixed_length: bool = False


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What a coordinator serves."""

    target: ModelInfo
    drafts: tuple[ModelInfo, ...]  # one per connected draft replica
    default_speculation: Speculation
    version: str
    drafting_verifiers: int = 0  # connected verifiers that have a draft of their own
