"""Protobuf <-> plain values of the public API."""

from __future__ import annotations

import secrets
import time
import uuid
from dataclasses import dataclass, replace

from google.protobuf.duration_pb2 import Duration

from outrider.acceptance.proposal import Source
from outrider.acceptance.stopping import FinishReason, StopConditions
from outrider.errors import InvalidArgument
from outrider.rpc.values import RULES, rule_from_proto, sampling_from_proto
from outrider.text.chat import Message
from outrider.v1 import generation_pb2 as pb
from outrider_coordinator.guard import ANYBODY, Caller
from outrider_coordinator.pairing import Target
from outrider_coordinator.request import MAX_CHAT_MESSAGES, DrafterKind, Limits, Request, Speculation, validate
from outrider_coordinator.session import Delta, Session

DRAFTERS = {
    DrafterKind.NONE: pb.DRAFTER_NONE,
    DrafterKind.NGRAM: pb.DRAFTER_NGRAM,
    DrafterKind.MODEL: pb.DRAFTER_MODEL,
    DrafterKind.AUTO: pb.DRAFTER_AUTO,
}
_SOURCES = {Source.NGRAM: pb.DRAFTER_NGRAM, Source.MODEL: pb.DRAFTER_MODEL}
_DRAFTERS_BACK = {number: kind for kind, number in DRAFTERS.items()}
_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORT: pb.FINISH_REASON_ABORT,
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request that leaves a field out gets."""

    speculation: Speculation
    max_tokens: int
    limits: Limits


def request_from_proto(
    wire: pb.GenerateRequest, target: Target, defaults: Defaults, caller: Caller = ANYBODY
) -> Request:
    """A checked request. Raise InvalidArgument naming the first field that cannot be served."""
    limits = _limits_of(caller, defaults.limits)
    prompt = prompt_from_proto(wire, target, limits)
    room = target.model.context_length - len(prompt)
    if limits.max_output_tokens is not None:
        room = min(room, limits.max_output_tokens)
    request = Request(
        request_id=wire.request_id or uuid.uuid4().hex,
        prompt=tuple(prompt),
        params=sampling_from_proto(wire.sampling),
        conditions=StopConditions(
            max_tokens=wire.max_tokens if wire.HasField("max_tokens") else max(1, min(defaults.max_tokens, room)),
            max_length=target.model.context_length,
            eos_token_ids=frozenset(target.model.eos_token_ids),
            ignore_eos=wire.ignore_eos,
            stop_token_ids=frozenset(wire.stop_token_ids),
            stop_strings=tuple(wire.stop),
            include_stop=wire.include_stop,
            min_tokens=wire.sampling.min_tokens,
        ),
        seed=wire.seed if wire.HasField("seed") else secrets.randbits(64),
        logprobs=wire.logprobs if wire.HasField("logprobs") else None,
        speculation=_speculation_from_proto(wire.speculation, defaults.speculation),
        tenant=caller.owner,
        session_id=wire.session_id,
    )
    validate(request, target.model, limits)
    return request


def _limits_of(caller: Caller, limits: Limits) -> Limits:
    most = [limit for limit in (caller.max_tokens, limits.max_output_tokens) if limit is not None]
    return replace(limits, max_output_tokens=min(most, default=None))


def prompt_bytes(wire: pb.GenerateRequest | pb.TokenizeRequest) -> int:
    """How much text there is to tokenize, in bytes of the message, near enough."""
    kind = wire.WhichOneof("input")
    return wire.ByteSize() if kind in ("text", "chat") else 0


def prompt_from_proto(wire: pb.GenerateRequest | pb.TokenizeRequest, target: Target, limits: Limits) -> list[int]:
    """The prompt's token ids, whichever way it came. Raise InvalidArgument for more than the limits."""
    match wire.WhichOneof("input"):
        case "text":
            _check_text("text", len(wire.text.encode()), limits)
            return target.tokenizer.encode(wire.text)
        case "chat":
            if (count := len(wire.chat.messages)) > MAX_CHAT_MESSAGES:
                raise InvalidArgument("chat.messages", f"{count} messages", f"at most {MAX_CHAT_MESSAGES}")
            _check_text("chat.messages", wire.chat.ByteSize(), limits)
            return target.tokenizer.encode_chat([Message(role=m.role, content=m.content) for m in wire.chat.messages])
        case "token_ids":
            assert isinstance(wire, pb.GenerateRequest)
            return list(wire.token_ids.ids)
        case _:
            raise InvalidArgument("input", "not set", "text, token_ids or chat")


def _check_text(field: str, size: int, limits: Limits) -> None:
    if size > limits.max_prompt_bytes:
        raise InvalidArgument(field, f"{size} bytes", f"at most {limits.max_prompt_bytes} bytes long")


def _speculation_from_proto(wire: pb.Speculation, default: Speculation) -> Speculation:
    drafter = default.drafter
    if wire.drafter != pb.DRAFTER_UNSPECIFIED:
        if wire.drafter not in _DRAFTERS_BACK:
            raise InvalidArgument("speculation.drafter", wire.drafter, f"one of {', '.join(DrafterKind)}")
        drafter = _DRAFTERS_BACK[wire.drafter]
    longest = wire.max_draft_tokens if wire.HasField("max_draft_tokens") else default.max_draft_tokens
    fixed = wire.fixed_length if wire.HasField("fixed_length") else default.fixed_length
    return Speculation(drafter, longest, rule_from_proto(wire.rule, default.rule), fixed)


def speculation_to_proto(speculation: Speculation) -> pb.Speculation:
    """The wire form of how to speculate."""
    return pb.Speculation(
        drafter=DRAFTERS[speculation.drafter],
        max_draft_tokens=speculation.max_draft_tokens,
        rule=RULES[speculation.rule],
        fixed_length=speculation.fixed_length,
    )


def delta_to_proto(delta: Delta) -> pb.GenerateResponse:
    """One piece of the answer."""
    response = pb.GenerateResponse()
    wire = response.delta  # written in place: parts that are made apart are copied
    wire.text = delta.text
    wire.token_ids.extend(delta.token_ids)
    for entry in delta.logprobs:
        row = wire.logprobs.add(token_id=entry.token_id, logprob=entry.logprob)
        for token, logprob in entry.top:
            row.top.add(token_id=token, logprob=logprob)
    return response


def finished_to_proto(session: Session, fallback_reason: str) -> pb.GenerateResponse:
    """The end of the answer, with everything that was counted."""
    finish, request, counts = session.finish, session.request, session.counts
    assert finish is not None
    finished = pb.Finished(
        request_id=request.request_id,
        reason=_REASONS[finish.reason],
        usage=pb.Usage(
            prompt_tokens=len(request.prompt),
            completion_tokens=session.completion_tokens,
            cached_tokens=counts.cached_tokens,
        ),
        seed=request.seed,
        speculation=_stats(session, fallback_reason),
        timings=_timings(session),
    )
    if finish.stop_text is not None:
        finished.stop_text = finish.stop_text
    elif finish.stop_token_id is not None:
        finished.stop_token_id = finish.stop_token_id
    return pb.GenerateResponse(finished=finished)


def _stats(session: Session, fallback_reason: str) -> pb.SpeculationStats:
    speculation, counts = session.request.speculation, session.counts
    return pb.SpeculationStats(
        rounds=counts.rounds,
        proposed_tokens=counts.proposed,
        accepted_tokens=counts.accepted,
        acceptance_rate=counts.acceptance_rate,
        accepted_length=session.completion_tokens / counts.rounds if counts.rounds else 0.0,
        wire_bytes=counts.wire_bytes,
        drafter=DRAFTERS[speculation.drafter],
        rule=RULES[speculation.rule],
        fallback_reason=fallback_reason,
        plain_rounds=counts.plain_rounds,
        look_ups=counts.look_ups,
        hits=counts.hits,
        drafted_ahead_tokens=counts.drafted_ahead,
        sibling_tokens=counts.siblings,
        sources=[
            pb.SourceStats(source=number, rounds=of.rounds, proposed_tokens=of.proposed, accepted_tokens=of.accepted)
            for source, number in _SOURCES.items()
            if (of := counts.by_source.get(source))
        ],
    )


def _timings(session: Session) -> pb.Timings:
    clock = session.clock
    timings = pb.Timings(total=_duration(time.monotonic() - clock.arrived))
    if clock.admitted is not None:
        timings.queued.CopyFrom(_duration(clock.admitted - clock.arrived))
    if clock.first_token is not None:
        timings.first_token.CopyFrom(_duration(clock.first_token - clock.arrived))
    return timings


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
