"""Protobuf <-> plain values: what stands inside the items of the replica streams and inside clients' requests.

Each pair of functions is the other's inverse; `*_from_proto` raises InvalidArgument for anything a well-behaved peer
cannot have sent. Lists of numbers are read as slices: going through a list of the message itself takes several times as
long.
"""

from __future__ import annotations

from functools import lru_cache
from operator import gt

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, RowLogprobs, Source, SparseQ, Verdict
from outrider.acceptance.tally import NO_TALLY, PLACES, Tally
from outrider.acceptance.tree import TokenTree
from outrider.errors import InternalError, InvalidArgument
from outrider.protocol.items import DraftFirst, Step
from outrider.v1 import replica_pb2, sampling_pb2, verifier_pb2

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
RULES_BACK = {number: rule for rule, number in RULES.items()}
_SOURCES_BACK = {number: source for source, number in _SOURCES.items()}

COMMON_ORDERS = 256
"""Nearly all that is ever ordered from drafts, which need not be made anew each time."""


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


def write_tree(tree: TokenTree, wire: replica_pb2.TokenTree) -> None:
    """Fill in the wire form of a token tree; a chain carries no parents."""
    wire.tokens[:] = tree.tokens
    if not tree.is_chain:
        wire.parents[:] = tree.parents


def tree_from_proto(wire: replica_pb2.TokenTree) -> TokenTree:
    """A token tree; it is checked where the vocabulary is known (`validate_tree`)."""
    tokens, parents = tuple(wire.tokens[:]), wire.parents
    return TokenTree(tokens, tuple(parents[:])) if parents else TokenTree.chain(tokens)


def write_proposal(proposal: Proposal, wire: replica_pb2.Proposal) -> None:
    """Fill in the wire form of a proposal."""
    wire.source = _SOURCES[proposal.source]
    write_tree(proposal.tree, wire.tree)
    for q in proposal.q:
        wire.q.add(token_ids=q.token_ids, probabilities=q.probabilities)


def proposal_from_proto(wire: replica_pb2.Proposal) -> Proposal:
    """A plain proposal."""
    tree = tree_from_proto(wire.tree)
    if not tree.tokens:
        return NO_PROPOSAL
    q = _q_from_proto(wire) if wire.q else ()
    return Proposal(tree, _SOURCES_BACK.get(wire.source, Source.MODEL), q)


def _q_from_proto(wire: replica_pb2.Proposal) -> tuple[SparseQ, ...]:
    if len(wire.q) != len(wire.tree.tokens):
        raise InvalidArgument("proposal.q", len(wire.q), f"empty or as long as tokens, {len(wire.tree.tokens)}")
    q = tuple(SparseQ(tuple(entry.token_ids[:]), tuple(entry.probabilities[:])) for entry in wire.q)
    if any(len(entry.token_ids) != len(entry.probabilities) or not entry.token_ids for entry in q):
        raise InvalidArgument("proposal.q", "lists of unequal length", "as many probabilities as token ids, at least 1")
    return q


def write_verdict(verdict: Verdict, wire: verifier_pb2.Verdict) -> None:
    """Fill in the wire form of a verdict."""
    wire.next_tokens[:] = verdict.next_tokens
    if verdict.thresholds:
        wire.thresholds[:] = verdict.thresholds
    for row in verdict.logprobs:
        wire.logprobs.add(token_ids=row.token_ids, logprobs=row.logprobs)
    wire.step_microseconds = verdict.step_microseconds


def verdict_from_proto(wire: verifier_pb2.Verdict) -> Verdict:
    """A plain verdict; whether it fits its proposal is checked by `accept`."""
    logprobs = wire.logprobs
    return Verdict(
        tuple(wire.next_tokens[:]),
        tuple(wire.thresholds[:]),
        tuple(RowLogprobs(tuple(row.token_ids[:]), tuple(row.logprobs[:])) for row in logprobs) if logprobs else (),
        wire.step_microseconds,
    )


def write_step(step: Step, wire: verifier_pb2.Verdict | verifier_pb2.Verdicts) -> None:
    """Fill in what is said of the pass."""
    wire.step_rows, wire.step_sessions, wire.draft_microseconds, wire.draft_depth = step[:4]
    wire.draft_prompt_rows = step.draft_prompt_rows
    wire.step_waited = step.waited
    if step.tally.tried:
        wire.tally_tried[:], wire.tally_stood[:] = step.tally


def step_from_proto(wire: verifier_pb2.Verdict | verifier_pb2.Verdicts) -> Step:
    """What is said of the pass. Raise InternalError for a tally that cannot be one."""
    drafting = wire.draft_microseconds, wire.draft_depth, wire.draft_prompt_rows
    tally = _tally_from_proto(wire) if wire.tally_tried or wire.tally_stood else NO_TALLY
    return Step(wire.step_rows, wire.step_sessions, *drafting, wire.step_waited, tally)


def _tally_from_proto(wire: verifier_pb2.Verdict | verifier_pb2.Verdicts) -> Tally:
    tried, stood = tuple(wire.tally_tried[:]), tuple(wire.tally_stood[:])
    if not len(tried) == len(stood) <= PLACES:
        raise InternalError(f"a tally of {len(tried)} places tried and {len(stood)} that stood, at most {PLACES}")
    if any(map(gt, stood, tried)):
        raise InternalError(f"a tally of {tried} tokens tried, of which {stood} stood")
    return Tally(tried, stood)


def write_draft_first(first: DraftFirst | None, wire: verifier_pb2.Verify | verifier_pb2.FollowUp) -> None:
    """Fill in what the replica is to draft by itself, if it is."""
    if first is not None:
        draft_first = wire.draft_first
        draft_first.max_tokens = first.max_tokens
        draft_first.siblings.extend(first.siblings)
        if first.vote is not None:
            draft_first.vote = first.vote


def draft_first_from_proto(wire: verifier_pb2.Verify | verifier_pb2.FollowUp) -> DraftFirst | None:
    """What the replica is to draft by itself, if it is."""
    if not wire.HasField("draft_first"):
        return None
    first = wire.draft_first
    vote = first.vote if first.HasField("vote") else None
    return _draft_first(first.max_tokens, tuple(first.siblings), vote)


@lru_cache(COMMON_ORDERS)
def _draft_first(max_tokens: int, siblings: tuple[int, ...], vote: int | None) -> DraftFirst:
    return DraftFirst(max_tokens, siblings, vote)
