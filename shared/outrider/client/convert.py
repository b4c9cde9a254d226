"""Requests to protobuf and responses from it: pure functions, the same for the sync and the async client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from outrider.acceptance.params import Rule
from outrider.client.options import ChatMessage, RequestOptions
from outrider.client.results import (
    Chunk,
    Completion,
    Drafter,
    FinishReason,
    ServiceInfo,
    SourceStats,
    Speculation,
    SpeculationStats,
    Timings,
    TokenLogprobs,
    TopLogprob,
    Usage,
)
from outrider.errors import InternalError, InvalidArgument
from outrider.rpc.convert import model_from_proto
from outrider.rpc.values import RULES, rule_from_proto
from outrider.v1 import generation_pb2

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

_DRAFTERS = {
    Drafter.NONE: generation_pb2.DRAFTER_NONE,
    Drafter.NGRAM: generation_pb2.DRAFTER_NGRAM,
    Drafter.MODEL: generation_pb2.DRAFTER_MODEL,
    Drafter.AUTO: generation_pb2.DRAFTER_AUTO,
}
_DRAFTERS_BACK: dict[int, Drafter] = {number: drafter for drafter, number in _DRAFTERS.items()}
_REASONS: dict[int, FinishReason] = {
    generation_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    generation_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    generation_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
}

# Options whose proto field has the same name and needs no conversion, by the message that holds them.
_REQUEST_FIELDS = {
    "request_id",
    "session_id",
    "max_tokens",
    "stop_token_ids",
    "ignore_eos",
    "seed",
    "logprobs",
    "include_stop",
}
_SAMPLING_FIELDS = {
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
}
_Choice = TypeVar("_Choice", bound=StrEnum)


# Requests


def generate_request(prompt: str | None, options: RequestOptions) -> generation_pb2.GenerateRequest:
    """The request for `prompt` and `options`. Raises InvalidArgument for what cannot be put on the wire.

    Ranges that depend on the model are checked by the service.
    """
    if unknown := options.keys() - RequestOptions.__annotations__.keys():
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
    request = generation_pb2.GenerateRequest()
    _set_input(request, prompt, options)
    given: Mapping[str, object] = options
    for field, value in given.items():
        if field in _REQUEST_FIELDS:
            _set(request, field, value)
        elif field in _SAMPLING_FIELDS:
            _set(request.sampling, field, value)
    if "stop" in options:
        stop = options["stop"]
        _set(request, "stop", (stop,) if isinstance(stop, str) else stop)
    for token, bias in options.get("logit_bias", {}).items():
        entry = request.sampling.logit_bias.add()
        _set(entry, "token_id", token, name="logit_bias.token_id")
        _set(entry, "bias", bias, name="logit_bias.bias")
    _set_speculation(request.speculation, options)
    return request


def tokenize_request(text: str | None, messages: Sequence[ChatMessage] | None) -> generation_pb2.TokenizeRequest:
    """The request for exactly one of `text` and `messages`."""
    if (text is None) == (messages is None):
        raise InvalidArgument("input", _given(text=text, messages=messages), "exactly one of text and messages")
    request = generation_pb2.TokenizeRequest()
    if text is not None:
        _set(request, "text", text)
    if messages is not None:
        _set_chat(request.chat, messages)
    return request


def _set_input(request: generation_pb2.GenerateRequest, prompt: str | None, options: RequestOptions) -> None:
    token_ids, messages = options.get("token_ids"), options.get("messages")
    if given := _given(prompt=prompt, token_ids=token_ids, messages=messages):
        if len(given) > 1:
            raise InvalidArgument("input", given, "exactly one of prompt, token_ids and messages")
    else:
        raise InvalidArgument("input", None, "one of prompt, token_ids and messages")
    if prompt is not None:
        _set(request, "text", prompt, name="prompt")
    if token_ids is not None:
        request.token_ids.SetInParent()
        _set(request.token_ids, "ids", token_ids, name="token_ids")
    if messages is not None:
        _set_chat(request.chat, messages)


def _given(**inputs: object) -> list[str]:
    return [name for name, value in inputs.items() if value is not None]


def _set_chat(chat: generation_pb2.Chat, messages: Sequence[ChatMessage]) -> None:
    chat.SetInParent()
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
            raise InvalidArgument(f"messages[{index}]", message, "a mapping with exactly role and content")
        entry = chat.messages.add()
        _set(entry, "role", message["role"], name=f"messages[{index}].role")
        _set(entry, "content", message["content"], name=f"messages[{index}].content")


def _set_speculation(speculation: generation_pb2.Speculation, options: RequestOptions) -> None:
    if "drafter" in options:
        speculation.drafter = _DRAFTERS[_choice("drafter", options["drafter"], Drafter)]
    if "max_draft_tokens" in options:
        _set(speculation, "max_draft_tokens", options["max_draft_tokens"])
    if "fixed_length" in options:
        _set(speculation, "fixed_length", options["fixed_length"])
    if "rule" in options:
        speculation.rule = RULES[_choice("rule", options["rule"], Rule)]


def _choice(name: str, value: str, choices: type[_Choice]) -> _Choice:
    try:
        return choices(value)
    except ValueError:
        raise InvalidArgument(name, value, f"one of {', '.join(choices)}") from None


def _set(message: Message, field: str, value: object, *, name: str = "") -> None:
    """Set a scalar or repeated field; a value of the wrong type or size is an InvalidArgument."""
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    try:
        if not descriptor.is_repeated:
            setattr(message, field, value)
        elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
            getattr(message, field).extend(value)
        else:
            raise TypeError("not a list")
    except (TypeError, ValueError):
        kind = _KINDS[descriptor.type]
        limit = f"a list in which each is {kind}" if descriptor.is_repeated else kind
        raise InvalidArgument(name or field, value, limit) from None


_KINDS = {
    FieldDescriptor.TYPE_STRING: "valid Unicode text",
    FieldDescriptor.TYPE_BOOL: "True or False",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_UINT32: "a whole number from 0 to 4294967295",
    FieldDescriptor.TYPE_FIXED64: "a whole number from 0 to 18446744073709551615",
}


# Responses


def chunk_from_proto(delta: generation_pb2.Delta) -> Chunk:
    """One piece of the answer."""
    return Chunk(delta.text, tuple(delta.token_ids), tuple(_logprobs_from_proto(entry) for entry in delta.logprobs))


def completion_from_proto(chunks: Sequence[Chunk], finished: generation_pb2.Finished) -> Completion:
    """The whole answer: every chunk, and the message that ended it."""
    stop = finished.WhichOneof("stop")
    return Completion(
        request_id=finished.request_id,
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=tuple(entry for chunk in chunks for entry in chunk.logprobs),
        finish_reason=_known("finish reason", finished.reason, _REASONS),
        stop=None if stop is None else getattr(finished, stop),
        usage=Usage(finished.usage.prompt_tokens, finished.usage.completion_tokens, finished.usage.cached_tokens),
        seed=finished.seed,
        speculation=_stats_from_proto(finished.speculation),
        timings=Timings(
            queued_s=_seconds(finished.timings.queued),
            first_token_s=_seconds(finished.timings.first_token),
            total_s=_seconds(finished.timings.total),
        ),
    )


def service_info_from_proto(response: generation_pb2.GetModelInfoResponse) -> ServiceInfo:
    """What a coordinator serves."""
    default = response.default_speculation
    return ServiceInfo(
        target=model_from_proto(response.target),
        drafts=tuple(model_from_proto(draft) for draft in response.drafts),
        default_speculation=Speculation(
            drafter=_DRAFTERS_BACK.get(default.drafter, Drafter.NONE),
            max_draft_tokens=default.max_draft_tokens if default.HasField("max_draft_tokens") else None,
            rule=rule_from_proto(default.rule),
            fixed_length=default.fixed_length,
        ),
        version=response.version,
        drafting_verifiers=response.drafting_verifiers,
    )


def _logprobs_from_proto(entry: generation_pb2.TokenLogprobs) -> TokenLogprobs:
    top = tuple(TopLogprob(each.token_id, each.logprob) for each in entry.top)
    return TokenLogprobs(entry.token_id, entry.logprob, top)


def _stats_from_proto(stats: generation_pb2.SpeculationStats) -> SpeculationStats:
    return SpeculationStats(
        rounds=stats.rounds,
        proposed_tokens=stats.proposed_tokens,
        accepted_tokens=stats.accepted_tokens,
        acceptance_rate=stats.acceptance_rate if stats.HasField("acceptance_rate") else None,
        accepted_length=stats.accepted_length,
        wire_bytes=stats.wire_bytes,
        drafter=_DRAFTERS_BACK.get(stats.drafter, Drafter.NONE),
        rule=rule_from_proto(stats.rule),
        fallback_reason=stats.fallback_reason,
        plain_rounds=stats.plain_rounds,
        look_ups=stats.look_ups,
        hits=stats.hits,
        drafted_ahead_tokens=stats.drafted_ahead_tokens,
        sibling_tokens=stats.sibling_tokens,
        sources=tuple(
            SourceStats(_DRAFTERS_BACK.get(of.source, Drafter.NONE), of.rounds, of.proposed_tokens, of.accepted_tokens)
            for of in stats.sources
        ),
    )


def _known(what: str, number: int, values: Mapping[int, _Choice]) -> _Choice:
    try:
        return values[number]
    except KeyError:
        raise InternalError(f"the service sent an unknown {what}, {number}; is the client too old?") from None


def _seconds(duration: Duration) -> float:
    return float(duration.ToNanoseconds() / 1e9)
