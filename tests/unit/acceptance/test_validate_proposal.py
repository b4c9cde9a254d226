"""Proposals from the wire: each way to be wrong is named, and nothing wrong gets through."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, SparseQ
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.acceptance.validate import MAX_Q_ENTRIES, validate_proposal
from outrider.errors import InvalidArgument

FORK = TokenTree((1, 2), (ROOT, ROOT))


def with_q(*q: SparseQ, tokens: tuple[int, ...] = (1,)) -> Proposal:
    return Proposal(TokenTree.chain(tokens), Source.MODEL, q)


def check(proposal: Proposal, rule: Rule = Rule.REJECTION, **limits) -> None:
    validate_proposal(proposal, rule, **({"vocabulary_size": 10} | limits))


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize(
    "proposal",
    [
        NO_PROPOSAL,
        with_q(),
        with_q(SparseQ((1,), (1.0,))),
        with_q(SparseQ((0, 1, 9), (0.25, 0.5, 0.25)), SparseQ((3,), (0.9999,)), tokens=(1, 3)),
        with_q(SparseQ((1, 2), (1.0, 0.0))),
    ],
)
def test_good_proposals_pass(rule, proposal):
    check(proposal, rule)


@pytest.mark.parametrize(
    ("proposal", "field"),
    [
        (Proposal(TokenTree((10,), (ROOT,)), Source.MODEL), "tree.tokens[0]"),
        (Proposal(TokenTree((-1,), (ROOT,)), Source.MODEL), "tree.tokens[0]"),
        (Proposal(TokenTree((1, 1), (ROOT, 1)), Source.MODEL), "tree.parents[1]"),
        (Proposal(TokenTree((1,), ()), Source.MODEL), "tree.parents"),
        (Proposal(NO_PROPOSAL.tree, Source.MODEL, (SparseQ((1,), (1.0,)),)), "q"),
        (with_q(SparseQ((1,), (1.0,)), tokens=(1, 2)), "q"),
        (with_q(SparseQ((), ())), "q[0].token_ids"),
        (with_q(SparseQ((1, 2), (1.0,))), "q[0].probabilities"),
        (with_q(SparseQ((1, 10), (0.5, 0.5))), "q[0].token_ids"),
        (with_q(SparseQ((1, -1), (0.5, 0.5))), "q[0].token_ids"),
        (with_q(SparseQ((1, 1), (0.5, 0.5))), "q[0].token_ids"),
        (with_q(SparseQ((1, 2), (0.0, 0.0))), "q[0].probabilities"),
        (with_q(SparseQ((1, 2), (0.5, 0.4))), "q[0].probabilities"),
        (with_q(SparseQ((1, 2), (1.5, -0.5))), "q[0].probabilities"),
        (with_q(SparseQ((1, 2), (1.0, math.nan))), "q[0].probabilities"),
        (with_q(SparseQ((1, 2), (1.0, math.inf))), "q[0].probabilities"),
        (with_q(SparseQ((1, 2), (math.inf, -math.inf))), "q[0].probabilities"),
        (with_q(SparseQ((2, 3), (0.5, 0.5))), "q[0].token_ids"),
        (with_q(SparseQ((1, 2), (0.0, 1.0))), "q[0].token_ids"),
        (with_q(SparseQ((1,), (1.0,)), SparseQ((2,), (1.0,)), tokens=(1, 3)), "q[1].token_ids"),
    ],
)
def test_bad_proposals_are_refused_by_field(proposal, field):
    with pytest.raises(InvalidArgument) as caught:
        check(proposal)
    assert caught.value.field == f"proposal.{field}"


def test_branches_are_for_match_and_rejection():
    check(Proposal(FORK, Source.MODEL), Rule.MATCH)
    check(Proposal(FORK, Source.MODEL), Rule.REJECTION)
    with pytest.raises(InvalidArgument, match="chain"):
        check(Proposal(FORK, Source.MODEL), Rule.BLOCK)


def test_sizes_are_bounded():
    with pytest.raises(InvalidArgument, match="at most 2"):
        check(with_q(tokens=(1, 2, 3)), max_nodes=2)
    size = MAX_Q_ENTRIES + 1
    with pytest.raises(InvalidArgument, match="token_ids"):
        check(with_q(SparseQ(tuple(range(size)), (1 / size,) * size)), vocabulary_size=1000)


numbers = st.one_of(st.sampled_from([0.0, 1.0, 0.5, -1.0, math.nan, math.inf]), st.floats())


@given(
    st.lists(st.integers(-1, 11), max_size=3),
    st.lists(st.integers(-2, 3), max_size=3),
    st.lists(st.tuples(st.lists(st.integers(-1, 11), max_size=3), st.lists(numbers, max_size=3)), max_size=3),
)
def test_anything_from_the_wire_is_refused_by_name_or_sound(tokens, parents, q):
    proposal = Proposal(
        TokenTree(tuple(tokens), tuple(parents)), Source.MODEL, tuple(SparseQ(tuple(i), tuple(p)) for i, p in q)
    )
    refused = None
    try:
        check(proposal)
    except InvalidArgument as error:
        refused = error
    if refused is not None:
        assert refused.field.startswith("proposal.")
        return
    assert len(tokens) == len(parents)
    for token, distribution in zip(tokens, proposal.q, strict=False):
        assert math.fsum(distribution.probabilities) == pytest.approx(1.0, abs=1e-3)
        assert dict(zip(distribution.token_ids, distribution.probabilities, strict=True))[token] > 0.0
