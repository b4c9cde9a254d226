"""Protobuf <-> plain values for the replica streams. Each pair of functions is the other's inverse.

`*_from_proto` raises InvalidArgument for anything a well-behaved peer cannot have sent.
"""

from __future__ import annotations

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, RowLogprobs, Source, SparseQ, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.errors import InternalError, InvalidArgument
from outrider.protocol import items
from outrider.protocol.items import FailureCode, Key, ModelInfo
from outrider.v1 import draft_pb2, model_pb2, replica_pb2, sampling_pb2, verifier_pb2

RULES = {
    Rule.MATCH: sampling_pb2.ACCEPTANCE_RULE_MATCH,
    Rule.REJECTION: sampling_pb2.ACCEPTANCE_RULE_REJECTION,
    Rule.BLOCK: sampling_pb2.ACCEPTANCE_RULE_BLOCK,
}
_SOURCES = {
    Source.NONE: replica_pb2.PROPOSAL_SOURCE_NONE,
    Source.MODEL: replica_pb2.PROPOSAL_SOURCE_MODEL,
    Source.NGRAM: replica_pb2.PROPOSAL_SOURCE_NGRAM,
}
_FAILURES = {
    FailureCode.UNKNOWN_SESSION: replica_pb2.ITEM_ERROR_CODE_UNKNOWN_SESSION,
    FailureCode.STALE_EPOCH: replica_pb2.ITEM_ERROR_CODE_STALE_EPOCH,
    FailureCode.BASE_LENGTH: replica_pb2.ITEM_ERROR_CODE_BASE_LENGTH,
    FailureCode.INVALID_ARGUMENT: replica_pb2.ITEM_ERROR_CODE_INVALID_ARGUMENT,
    FailureCode.RESOURCE_EXHAUSTED: replica_pb2.ITEM_ERROR_CODE_RESOURCE_EXHAUSTED,
    FailureCode.CONTEXT_LENGTH: replica_pb2.ITEM_ERROR_CODE_CONTEXT_LENGTH,
    FailureCode.INTERNAL: replica_pb2.ITEM_ERROR_CODE_INTERNAL,
}
RULES_BACK = {number: rule for rule, number in RULES.items()}
_SOURCES_BACK = {number: source for source, number in _SOURCES.items()}
_FAILURES_BACK = {number: code for code, number in _FAILURES.items()}

_WireItem = verifier_pb2.VerifierItem | draft_pb2.DraftItem
_WireReply = verifier_pb2.VerifierReply | draft_pb2.DraftReply


# Sampling parameters


def sampling_to_proto(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """The wire form of a request's sampling parameters."""
    return sampling_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=[sampling_pb2.LogitBias(token_id=token, bias=bias) for token, bias in params.logit_bias],
        min_tokens=params.min_tokens,
    )


def sampling_from_proto(wire: sampling_pb2.SamplingParams) -> SamplingParams:
    """Plain sampling parameters; absent fields take their neutral value. Ranges are checked elsewhere."""
    return SamplingParams(
        temperature=wire.temperature if wire.HasField("temperature") else 1.0,
        top_k=wire.top_k,
        top_p=wire.top_p if wire.HasField("top_p") else 1.0,
        min_p=wire.min_p,
        repetition_penalty=wire.repetition_penalty if wire.HasField("repetition_penalty") else 1.0,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=tuple((entry.token_id, entry.bias) for entry in wire.logit_bias),
        min_tokens=wire.min_tokens,
    )


def rule_from_proto(number: int, default: Rule = Rule.MATCH) -> Rule:
    """The acceptance rule; the unspecified one is `default`."""
    if number == sampling_pb2.ACCEPTANCE_RULE_UNSPECIFIED:
        return default
    try:
        return RULES_BACK[number]  # type: ignore[index]
    except KeyError:
        raise InvalidArgument("rule", number, f"one of {', '.join(Rule)}") from None


# Proposals and verdicts


def proposal_to_proto(proposal: Proposal) -> replica_pb2.Proposal:
    """The wire form of a proposal; a chain carries no parents."""
    tree = proposal.tree
    return replica_pb2.Proposal(
        tree=replica_pb2.TokenTree(tokens=tree.tokens, parents=() if tree.is_chain else tree.parents),
        source=_SOURCES[proposal.source],
        q=[replica_pb2.SparseDistribution(token_ids=q.token_ids, probabilities=q.probabilities) for q in proposal.q],
    )


def proposal_from_proto(wire: replica_pb2.Proposal) -> Proposal:
    """A plain proposal; its tree is checked where the vocabulary is known (`validate_tree`)."""
    if not wire.tree.tokens:
        return NO_PROPOSAL
    if wire.q and len(wire.q) != len(wire.tree.tokens):
        raise InvalidArgument("proposal.q", len(wire.q), f"empty or as long as tokens, {len(wire.tree.tokens)}")
    tokens = tuple(wire.tree.tokens)
    tree = TokenTree(tokens, tuple(wire.tree.parents)) if wire.tree.parents else TokenTree.chain(tokens)
    q = tuple(SparseQ(tuple(entry.token_ids), tuple(entry.probabilities)) for entry in wire.q)
    if any(len(entry.token_ids) != len(entry.probabilities) or not entry.token_ids for entry in q):
        raise InvalidArgument("proposal.q", "lists of unequal length", "as many probabilities as token ids, at least 1")
    return Proposal(tree, _SOURCES_BACK.get(wire.source, Source.MODEL), q)


def verdict_to_proto(verdict: Verdict) -> verifier_pb2.Verdict:
    """The wire form of a verdict."""
    rows = [verifier_pb2.RowLogprobs(token_ids=row.token_ids, logprobs=row.logprobs) for row in verdict.logprobs]
    return verifier_pb2.Verdict(
        next_tokens=verdict.next_tokens,
        thresholds=verdict.thresholds,
        logprobs=rows,
        step_microseconds=verdict.step_microseconds,
    )


def verdict_from_proto(wire: verifier_pb2.Verdict) -> Verdict:
    """A plain verdict; whether it fits its proposal is checked by `accept`."""
    return Verdict(
        tuple(wire.next_tokens),
        tuple(wire.thresholds),
        tuple(RowLogprobs(tuple(row.token_ids), tuple(row.logprobs)) for row in wire.logprobs),
        wire.step_microseconds,
    )


# Items, coordinator to replica


def verifier_item_to_proto(item: items.VerifierRequest) -> verifier_pb2.VerifierItem:
    """One item of a frame to a verifier."""
    key = item.key
    wire = verifier_pb2.VerifierItem(session=key.session, epoch=key.epoch, base_length=key.base_length)
    if isinstance(item, items.Verify):
        wire.verify.CopyFrom(
            verifier_pb2.Verify(advance=_advance_to_proto(item), proposal=proposal_to_proto(item.proposal))
        )
    else:
        _common_to_proto(item, wire)
    return wire


def draft_item_to_proto(item: items.DraftRequest) -> draft_pb2.DraftItem:
    """One item of a frame to a draft."""
    key = item.key
    wire = draft_pb2.DraftItem(session=key.session, epoch=key.epoch, base_length=key.base_length)
    if isinstance(item, items.Propose):
        wire.propose.CopyFrom(draft_pb2.Propose(advance=_advance_to_proto(item), max_tokens=item.max_tokens))
    else:
        _common_to_proto(item, wire)
    return wire


def verifier_item_from_proto(wire: verifier_pb2.VerifierItem) -> items.VerifierRequest:
    """Raise InvalidArgument if the item has no event or an impossible one."""
    if wire.WhichOneof("event") == "verify":
        advance = wire.verify.advance
        proposal = proposal_from_proto(wire.verify.proposal)
        return items.Verify(key_of(wire), advance.keep, tuple(advance.append), proposal)
    return _common_from_proto(wire)


def draft_item_from_proto(wire: draft_pb2.DraftItem) -> items.DraftRequest:
    """Raise InvalidArgument if the item has no event or an impossible one."""
    if wire.WhichOneof("event") == "propose":
        advance = wire.propose.advance
        return items.Propose(key_of(wire), advance.keep, tuple(advance.append), wire.propose.max_tokens)
    return _common_from_proto(wire)


def _common_to_proto(item: items.Open | items.Advance | items.Close, wire: _WireItem) -> None:
    if isinstance(item, items.Open):
        wire.open.CopyFrom(_open_to_proto(item))
    elif isinstance(item, items.Advance):
        wire.advance.CopyFrom(_advance_to_proto(item))
    else:
        wire.close.SetInParent()


def _common_from_proto(wire: _WireItem) -> items.Open | items.Advance | items.Close:
    match wire.WhichOneof("event"):
        case "open":
            return _open_from_proto(key_of(wire), wire.open)
        case "advance":
            return items.Advance(key_of(wire), wire.advance.keep, tuple(wire.advance.append))
        case "close":
            return items.Close(key_of(wire))
        case event:
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
        tokens=tuple(wire.tokens),
        prompt_length=wire.prompt_length,
        max_length=wire.max_length,
        params=sampling_from_proto(wire.sampling),
        rule=rule_from_proto(wire.rule),
        seed=wire.seed,
        logprobs=wire.logprobs if wire.HasField("logprobs") else None,
        stop_token_ids=tuple(wire.stop_token_ids),
        cache_salt=wire.cache_salt,
    )


def _advance_to_proto(item: items.Advance | items.Verify | items.Propose) -> replica_pb2.Advance:
    return replica_pb2.Advance(keep=item.keep, append=item.append)


# Replies, replica to coordinator


def verifier_reply_to_proto(reply: items.VerifierReply) -> verifier_pb2.VerifierReply:
    """One reply of a frame from a verifier."""
    key = reply.key
    wire = verifier_pb2.VerifierReply(session=key.session, epoch=key.epoch, base_length=key.base_length)
    if isinstance(reply, items.Verified):
        wire.verdict.CopyFrom(verdict_to_proto(reply.verdict))
    else:
        _common_reply_to_proto(reply, wire)
    return wire


def draft_reply_to_proto(reply: items.DraftReply) -> draft_pb2.DraftReply:
    """One reply of a frame from a draft."""
    key = reply.key
    wire = draft_pb2.DraftReply(session=key.session, epoch=key.epoch, base_length=key.base_length)
    if isinstance(reply, items.Drafted):
        wire.proposal.CopyFrom(proposal_to_proto(reply.proposal))
    else:
        _common_reply_to_proto(reply, wire)
    return wire


def verifier_reply_from_proto(wire: verifier_pb2.VerifierReply) -> items.VerifierReply:
    """Raise InternalError for a reply without an event: the peer is broken."""
    if wire.WhichOneof("event") == "verdict":
        return items.Verified(key_of(wire), verdict_from_proto(wire.verdict))
    return _common_reply_from_proto(wire)


def draft_reply_from_proto(wire: draft_pb2.DraftReply) -> items.DraftReply:
    """Raise InternalError for a reply without an event: the peer is broken."""
    if wire.WhichOneof("event") == "proposal":
        return items.Drafted(key_of(wire), proposal_from_proto(wire.proposal))
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
    )
