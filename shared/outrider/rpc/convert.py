"""Protobuf <-> plain values for the replica streams. Each pair of functions is the other's inverse.

What each round sends is written into the item's own message: parts that are made apart and then copied in take twice
as long. `*_from_proto` raises InvalidArgument for anything a well-behaved peer cannot have sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.errors import InternalError, InvalidArgument
from outrider.protocol import items
from outrider.protocol.items import FailureCode, Key, ModelInfo
from outrider.rpc.values import (
    RULES,
    draft_first_from_proto,
    proposal_from_proto,
    rule_from_proto,
    sampling_from_proto,
    sampling_to_proto,
    step_from_proto,
    tree_from_proto,
    verdict_from_proto,
    write_draft_first,
    write_proposal,
    write_step,
    write_tree,
    write_verdict,
)
from outrider.v1 import draft_pb2, model_pb2, replica_pb2, verifier_pb2

_FAILURES = {
    FailureCode.UNKNOWN_SESSION: replica_pb2.ITEM_ERROR_CODE_UNKNOWN_SESSION,
    FailureCode.STALE_EPOCH: replica_pb2.ITEM_ERROR_CODE_STALE_EPOCH,
    FailureCode.BASE_LENGTH: replica_pb2.ITEM_ERROR_CODE_BASE_LENGTH,
    FailureCode.INVALID_ARGUMENT: replica_pb2.ITEM_ERROR_CODE_INVALID_ARGUMENT,
    FailureCode.RESOURCE_EXHAUSTED: replica_pb2.ITEM_ERROR_CODE_RESOURCE_EXHAUSTED,
    FailureCode.CONTEXT_LENGTH: replica_pb2.ITEM_ERROR_CODE_CONTEXT_LENGTH,
    FailureCode.INTERNAL: replica_pb2.ITEM_ERROR_CODE_INTERNAL,
}
_FAILURES_BACK = {number: code for code, number in _FAILURES.items()}

_WireItem = verifier_pb2.VerifierItem | draft_pb2.DraftItem
_WireReply = verifier_pb2.VerifierReply | draft_pb2.DraftReply


# Items, coordinator to replica


def verifier_item_to_proto(item: items.VerifierRequest) -> verifier_pb2.VerifierItem:
    """One item of a frame to a verifier."""
    wire = verifier_pb2.VerifierItem()
    wire.session, wire.epoch, wire.base_length = item.key
    if isinstance(item, items.Verify):
        verify = wire.verify
        _write_advance(item, verify.advance)
        write_proposal(item.proposal, verify.proposal)
        write_draft_first(item.draft_first, verify)
    elif isinstance(item, items.FollowUp):
        follow_up = wire.follow_up
        follow_up.plainly = item.plainly
        follow_up.rounds = item.rounds if item.rounds > 1 else 0
        follow_up.extends = item.extends
        _write_foreseen(item.foreseen, follow_up)
        write_draft_first(item.draft_first, follow_up)
    else:
        _common_to_proto(item, wire)
    return wire


def draft_item_to_proto(item: items.DraftRequest) -> draft_pb2.DraftItem:
    """One item of a frame to a draft."""
    wire = draft_pb2.DraftItem()
    wire.session, wire.epoch, wire.base_length = item.key
    if isinstance(item, items.Propose):
        propose = wire.propose
        _write_advance(item, propose.advance)
        propose.max_tokens = item.max_tokens
        propose.siblings.extend(item.siblings)
    elif isinstance(item, items.DraftAhead):
        ahead = wire.draft_ahead
        _write_advance(item, ahead.advance)
        write_tree(item.in_flight, ahead.in_flight)
        ahead.max_tokens = item.max_tokens
        ahead.branches.extend(item.branches)
        ahead.siblings.extend(item.siblings)
    else:
        _common_to_proto(item, wire)
    return wire


def verifier_item_from_proto(wire: verifier_pb2.VerifierItem) -> items.VerifierRequest:
    """Raise InvalidArgument if the item has no event or an impossible one."""
    match wire.WhichOneof("event"):
        case "verify":
            advance = wire.verify.advance
            proposal, first = proposal_from_proto(wire.verify.proposal), draft_first_from_proto(wire.verify)
            return items.Verify(key_of(wire), advance.keep, tuple(advance.append[:]), proposal, first)
        case "follow_up":
            order = wire.follow_up
            foreseen = tuple(map(_foreseen_from_proto, order.foreseen)) if order.foreseen else ()
            first, rounds = draft_first_from_proto(order), order.rounds or 1
            return items.FollowUp(key_of(wire), foreseen, order.plainly, first, rounds, order.extends)
        case event:
            return _common_from_proto(wire, event)


def draft_item_from_proto(wire: draft_pb2.DraftItem) -> items.DraftRequest:
    """Raise InvalidArgument if the item has no event or an impossible one."""
    match wire.WhichOneof("event"):
        case "propose":
            propose, advance = wire.propose, wire.propose.advance
            siblings = tuple(propose.siblings[:])
            return items.Propose(key_of(wire), advance.keep, tuple(advance.append[:]), propose.max_tokens, siblings)
        case "draft_ahead":
            ahead, advance = wire.draft_ahead, wire.draft_ahead.advance
            return items.DraftAhead(
                key_of(wire),
                advance.keep,
                tuple(advance.append[:]),
                tree_from_proto(ahead.in_flight),
                ahead.max_tokens,
                tuple(ahead.branches[:]),
                tuple(ahead.siblings[:]),
            )
        case event:
            return _common_from_proto(wire, event)


def _common_to_proto(item: items.Open | items.Advance | items.Close, wire: _WireItem) -> None:
    if isinstance(item, items.Open):
        wire.open.CopyFrom(_open_to_proto(item))
    elif isinstance(item, items.Advance):
        _write_advance(item, wire.advance)
    else:
        wire.close.CopyFrom(replica_pb2.Close(keep_ms=round(item.keep_s * 1000)))


def _common_from_proto(wire: _WireItem, event: str | None) -> items.Open | items.Advance | items.Close:
    match event:
        case "open":
            return _open_from_proto(key_of(wire), wire.open)
        case "advance":
            return items.Advance(key_of(wire), wire.advance.keep, tuple(wire.advance.append[:]))
        case "close":
            return items.Close(key_of(wire), wire.close.keep_ms / 1000)
        case _:
            raise InvalidArgument("event", event, "set")


def _open_to_proto(item: items.Open) -> replica_pb2.Open:
    return replica_pb2.Open(
        tokens=item.tokens,
        prompt_length=item.prompt_length,
        max_length=item.max_length,
        sampling=sampling_to_proto(item.params),
        rule=RULES[item.rule],
        seed=item.seed,
        logprobs=item.logprobs,
        stop_token_ids=item.stop_token_ids,
        cache_salt=item.cache_salt,
    )


def _open_from_proto(key: Key, wire: replica_pb2.Open) -> items.Open:
    return items.Open(
        key=key,
        tokens=tuple(wire.tokens[:]),
        prompt_length=wire.prompt_length,
        max_length=wire.max_length,
        params=sampling_from_proto(wire.sampling),
        rule=rule_from_proto(wire.rule),
        seed=wire.seed,
        logprobs=wire.logprobs if wire.HasField("logprobs") else None,
        stop_token_ids=tuple(wire.stop_token_ids),
        cache_salt=wire.cache_salt,
    )


def _write_advance(
    item: items.Advance | items.Verify | items.Propose | items.DraftAhead, wire: replica_pb2.Advance
) -> None:
    wire.keep = item.keep
    wire.append[:] = item.append


def _write_foreseen(foreseen: Iterable[items.Foreseen], wire: verifier_pb2.FollowUp | draft_pb2.DraftedAhead) -> None:
    for each in foreseen:
        entry = wire.foreseen.add(node=each.node, next_token=each.next_token)
        write_proposal(each.proposal, entry.proposal)


def _foreseen_from_proto(wire: replica_pb2.Foreseen) -> items.Foreseen:
    return items.Foreseen(wire.node, wire.next_token, proposal_from_proto(wire.proposal))


# Replies, replica to coordinator


def verifier_reply_to_proto(
    reply: items.VerifierReply, wire: verifier_pb2.VerifierReply | None = None
) -> verifier_pb2.VerifierReply:
    """One reply of a frame from a verifier; written into `wire` where that is given."""
    wire = verifier_pb2.VerifierReply() if wire is None else wire
    wire.session, wire.epoch, wire.base_length = reply.key
    if isinstance(reply, items.Verified):
        verdict = wire.verdict
        write_verdict(reply.verdict, verdict)
        if reply.drafted:
            write_proposal(reply.drafted, verdict.drafted)
        write_step(reply.step, verdict)
    else:
        _common_reply_to_proto(reply, wire)
    return wire


def draft_reply_to_proto(reply: items.DraftReply, wire: draft_pb2.DraftReply | None = None) -> draft_pb2.DraftReply:
    """One reply of a frame from a draft; written into `wire` where that is given."""
    wire = draft_pb2.DraftReply() if wire is None else wire
    wire.session, wire.epoch, wire.base_length = reply.key
    if isinstance(reply, items.Drafted):
        write_proposal(reply.proposal, wire.proposal)
    elif isinstance(reply, items.DraftedAhead):
        wire.drafted_ahead.SetInParent()  # there may be nothing foreseen
        _write_foreseen(reply.foreseen, wire.drafted_ahead)
    else:
        _common_reply_to_proto(reply, wire)
    return wire


def verifier_reply_from_proto(wire: verifier_pb2.VerifierReply) -> items.VerifierReply:
    """Raise InternalError for a reply without an event: the peer is broken."""
    if wire.WhichOneof("event") == "verdict":
        verdict = wire.verdict
        drafted = proposal_from_proto(verdict.drafted) if verdict.HasField("drafted") else NO_PROPOSAL
        return items.Verified(key_of(wire), verdict_from_proto(verdict), drafted, step_from_proto(verdict))
    return _common_reply_from_proto(wire)


def draft_reply_from_proto(wire: draft_pb2.DraftReply) -> items.DraftReply:
    """Raise InternalError for a reply without an event: the peer is broken."""
    match wire.WhichOneof("event"):
        case "proposal":
            return items.Drafted(key_of(wire), proposal_from_proto(wire.proposal))
        case "drafted_ahead":
            return items.DraftedAhead(key_of(wire), tuple(map(_foreseen_from_proto, wire.drafted_ahead.foreseen)))
        case _:
            return _common_reply_from_proto(wire)


def _common_reply_to_proto(reply: items.Opened | items.Closed | items.Failed, wire: _WireReply) -> None:
    if isinstance(reply, items.Opened):
        wire.opened.CopyFrom(replica_pb2.Opened(cached_tokens=reply.cached_tokens))
    elif isinstance(reply, items.Failed):
        wire.error.CopyFrom(replica_pb2.ItemError(code=_FAILURES[reply.code], message=reply.message))
    else:
        wire.closed.SetInParent()


def _common_reply_from_proto(wire: _WireReply) -> items.Opened | items.Closed | items.Failed:
    match wire.WhichOneof("event"):
        case "opened":
            return items.Opened(key_of(wire), wire.opened.cached_tokens)
        case "closed":
            return items.Closed(key_of(wire))
        case "error":
            code = _FAILURES_BACK.get(wire.error.code, FailureCode.INTERNAL)
            return items.Failed(key_of(wire), code, wire.error.message)
        case event:
            raise InternalError(f"a reply of session {wire.session} has no known event ({event})")


# Keys and models


def key_of(wire: _WireItem | _WireReply) -> Key:
    """The key every item and reply carries."""
    return Key(wire.session, wire.epoch, wire.base_length)


def model_to_proto(info: ModelInfo) -> model_pb2.ModelInfo:
    """The wire form of what a replica serves."""
    return model_pb2.ModelInfo(
        name=info.name,
        architecture=info.architecture,
        parameters=info.parameters,
        dtype=info.dtype,
        device=info.device,
        context_length=info.context_length,
        vocabulary_fingerprint=info.vocabulary_fingerprint,
        vocabulary_size=info.vocabulary_size,
        eos_token_ids=info.eos_token_ids,
        hardware=info.hardware,
    )


def model_from_proto(wire: model_pb2.ModelInfo) -> ModelInfo:
    """What a replica serves, as plain values."""
    return ModelInfo(
        name=wire.name,
        architecture=wire.architecture,
        parameters=wire.parameters,
        dtype=wire.dtype,
        device=wire.device,
        context_length=wire.context_length,
        vocabulary_fingerprint=wire.vocabulary_fingerprint,
        vocabulary_size=wire.vocabulary_size,
        eos_token_ids=tuple(wire.eos_token_ids),
        hardware=wire.hardware,
    )
