"""Plain items survive the wire; what no peer may send is refused by name."""

from __future__ import annotations

import contextlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, RowLogprobs, Source, SparseQ, Verdict
from outrider.acceptance.tally import NO_TALLY, PLACES, Tally
from outrider.acceptance.tree import TokenTree
from outrider.errors import InternalError, InvalidArgument
from outrider.protocol import items
from outrider.rpc import convert, values
from outrider.v1 import draft_pb2, replica_pb2, verifier_pb2

tokens = st.integers(0, 2**20)
floats = st.floats(0, 1, width=32)
keys = st.builds(items.Key, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
token_lists = st.lists(tokens, max_size=8).map(tuple)


@st.composite
def proposals(draw: st.DrawFn) -> Proposal:
    size = draw(st.integers(1, 6))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    tree = TokenTree(tuple(draw(tokens) for _ in range(size)), parents)
    entries = st.lists(st.tuples(tokens, floats), min_size=1, max_size=4)
    q = [SparseQ(*map(tuple, zip(*draw(entries), strict=True))) for _ in range(size)] if draw(st.booleans()) else []
    return Proposal(tree, draw(st.sampled_from([Source.MODEL, Source.NGRAM])), tuple(q))


params = st.builds(
    SamplingParams,
    temperature=floats,
    top_k=st.integers(0, 100),
    top_p=floats,
    min_p=floats,
    repetition_penalty=floats,
    presence_penalty=floats,
    frequency_penalty=floats,
    logit_bias=st.lists(st.tuples(tokens, floats), max_size=3).map(tuple),
    min_tokens=st.integers(0, 9),
)
openings = st.builds(
    items.Open,
    key=keys,
    tokens=token_lists,
    prompt_length=st.integers(0, 99),
    max_length=st.integers(0, 99),
    params=params,
    rule=st.sampled_from(list(Rule)),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.none() | st.integers(0, 20),
    stop_token_ids=token_lists,
    cache_salt=st.text(max_size=5),
)
advances = st.builds(items.Advance, keys, st.integers(0, 99), token_lists)
closings = st.builds(items.Close, keys, st.integers(0, 2**32 - 1).map(lambda milliseconds: milliseconds / 1000))
draft_firsts = st.none() | st.builds(items.DraftFirst, st.integers(0, 99), token_lists, st.none() | st.integers(0, 99))
verifies = st.builds(
    items.Verify, keys, st.integers(0, 99), token_lists, st.just(NO_PROPOSAL) | proposals(), draft_firsts
)
proposes = st.builds(items.Propose, keys, st.integers(0, 99), token_lists, st.integers(0, 64), token_lists)
aheads = st.builds(
    items.DraftAhead,
    keys,
    st.integers(0, 99),
    token_lists,
    st.just(NO_PROPOSAL.tree) | proposals().map(lambda proposal: proposal.tree),
    st.integers(0, 64),
    token_lists,
    token_lists,
)
foreseen = st.builds(items.Foreseen, st.integers(-1, 99), tokens, st.just(NO_PROPOSAL) | proposals())

verdicts = st.builds(
    Verdict,
    token_lists,
    st.lists(floats, max_size=4).map(tuple),
    st.lists(st.builds(RowLogprobs, token_lists, st.lists(floats, max_size=3).map(tuple)), max_size=3).map(tuple),
    st.integers(0, 10**6),
)
common_replies = (
    st.builds(items.Opened, keys, st.integers(0, 99))
    | st.builds(items.Closed, keys)
    | st.builds(items.Failed, keys, st.sampled_from(list(items.FailureCode)), st.text(max_size=20))
)


@given(
    openings
    | advances
    | closings
    | verifies
    | st.builds(
        items.FollowUp,
        keys,
        st.lists(foreseen, max_size=3).map(tuple),
        st.booleans(),
        draft_firsts,
        st.integers(1, 99),
        st.booleans(),
    )
)
def test_verifier_items_survive(item: items.VerifierRequest) -> None:
    wire = verifier_pb2.VerifierItem.FromString(convert.verifier_item_to_proto(item).SerializeToString())
    assert convert.verifier_item_from_proto(wire) == item


@given(openings | advances | closings | proposes | aheads)
def test_draft_items_survive(item: items.DraftRequest) -> None:
    wire = draft_pb2.DraftItem.FromString(convert.draft_item_to_proto(item).SerializeToString())
    assert convert.draft_item_from_proto(wire) == item


places = st.lists(st.tuples(st.integers(0, 128), st.integers(0, 128)).map(sorted), min_size=1, max_size=PLACES)
tallies = st.just(NO_TALLY) | places.map(lambda each: Tally(*map(tuple, zip(*((b, a) for a, b in each), strict=True))))


@given(
    common_replies
    | st.builds(
        items.Verified,
        keys,
        verdicts,
        st.just(NO_PROPOSAL) | proposals(),
        st.builds(items.Step, *[st.integers(0, 10**6)] * 5, waited=st.booleans(), tally=tallies),
    )
)
def test_verifier_replies_survive(reply: items.VerifierReply) -> None:
    wire = verifier_pb2.VerifierReply.FromString(convert.verifier_reply_to_proto(reply).SerializeToString())
    assert convert.verifier_reply_from_proto(wire) == reply


@given(
    common_replies
    | st.builds(items.Drafted, keys, st.just(NO_PROPOSAL) | proposals())
    | st.builds(items.DraftedAhead, keys, st.lists(foreseen, max_size=3).map(tuple))
)
def test_draft_replies_survive(reply: items.DraftReply) -> None:
    wire = draft_pb2.DraftReply.FromString(convert.draft_reply_to_proto(reply).SerializeToString())
    assert convert.draft_reply_from_proto(wire) == reply


@given(st.binary(max_size=60))
def test_bytes_without_sense_are_refused_and_nothing_else_happens(data: bytes) -> None:
    try:
        wire = verifier_pb2.VerifierItem.FromString(data)
    except DecodeError:  # protobuf refuses most of them itself
        return
    with contextlib.suppress(InvalidArgument):
        convert.verifier_item_from_proto(wire)


def test_an_item_without_an_event_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="event"):
        convert.verifier_item_from_proto(verifier_pb2.VerifierItem(session=1))
    with pytest.raises(InternalError, match="no known event"):
        convert.verifier_reply_from_proto(verifier_pb2.VerifierReply(session=1))


def test_q_must_fit_its_tree() -> None:
    wire = replica_pb2.Proposal(tree=replica_pb2.TokenTree(tokens=[1, 2]))
    wire.q.add(token_ids=[1], probabilities=[1.0])
    with pytest.raises(InvalidArgument, match=r"proposal\.q"):
        values.proposal_from_proto(wire)
    wire.q.add(token_ids=[1], probabilities=[])
    with pytest.raises(InvalidArgument, match=r"proposal\.q"):
        values.proposal_from_proto(wire)


def test_a_chain_costs_a_few_bytes_a_token() -> None:
    """The design's claim: under match about 4 bytes a proposed token, whatever the vocabulary."""
    chain = Proposal(TokenTree.chain([40_000 + i for i in range(8)]), Source.MODEL)
    verify = items.Verify(items.Key(7, 1, 900), 895, (1, 2, 3, 4, 5), chain)
    assert convert.verifier_item_to_proto(verify).ByteSize() <= 8 * 4 + 40
    verified = items.Verified(items.Key(7, 1, 900), Verdict(tuple(range(40_000, 40_009))))
    assert convert.verifier_reply_to_proto(verified).ByteSize() <= 9 * 4 + 30
