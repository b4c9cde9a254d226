"""What a draft answers is what it was asked for, or it is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.choice import Choice
from outrider.acceptance.guesses import validate_foreseen, validate_guess
from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, SparseQ
from outrider.acceptance.shape import pruned, widths_of
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.errors import InvalidArgument

CHAIN = Choice(Source.MODEL, 3)
WITH_SIBLINGS = Choice(Source.MODEL, 3, (2, 0, 1))


def guess(*tokens: int, parents: tuple[int, ...] | None = None, **others: Any) -> Proposal:
    tree = TokenTree.chain(tokens) if parents is None else TokenTree(tokens, parents)
    return Proposal(tree, **({"source": Source.MODEL} | others))


def check(proposal: Proposal, asked: Choice = CHAIN, rule: Rule = Rule.MATCH) -> None:
    validate_guess(proposal, asked, rule, vocabulary_size=10)


@pytest.mark.parametrize(
    ("proposal", "asked", "rule"),
    [
        (NO_PROPOSAL, CHAIN, Rule.MATCH),
        (guess(0), CHAIN, Rule.BLOCK),
        (guess(1, 2, 9), CHAIN, Rule.MATCH),
        (guess(1, 2, 9), WITH_SIBLINGS, Rule.MATCH),
        (guess(1, q=(SparseQ((1, 2), (0.5, 0.5)),)), CHAIN, Rule.REJECTION),
        (Proposal(TokenTree.caterpillar((1, 2, 3), ((4, 5), (), (6,))), Source.MODEL), WITH_SIBLINGS, Rule.MATCH),
        (Proposal(TokenTree.caterpillar((1,), ((4,),)), Source.MODEL), WITH_SIBLINGS, Rule.MATCH),
    ],
)
def test_what_was_asked_for_passes(proposal: Proposal, asked: Choice, rule: Rule) -> None:
    check(proposal, asked, rule)


@pytest.mark.parametrize(
    ("proposal", "asked", "field", "value", "limit"),
    [
        (guess(1, 10), CHAIN, "proposal.tree.tokens[1]", 10, "a token id below 10"),
        (guess(1, 2, 3, 4), CHAIN, "proposal.tree.tokens", 4, "at most 3 long"),
        (guess(1, 2, 3, 4), WITH_SIBLINGS, "proposal.tree.depth", 4, "at most 3"),
        (guess(1, 2, parents=(ROOT, 5)), CHAIN, "proposal.tree.parents[1]", 5, "from -1 to 0"),
        (guess(1, 2, parents=(ROOT, -7)), CHAIN, "proposal.tree.parents[1]", -7, "from -1 to 0"),
        (guess(1, 2, parents=(ROOT,)), CHAIN, "proposal.tree.parents", 1, "as many as tokens, 2"),
        (guess(1, 2, parents=(ROOT, ROOT)), CHAIN, "proposal.tree.parents", (ROOT, ROOT), "a chain"),
        (
            guess(1, 2, 3, 4, parents=(ROOT, ROOT, ROOT, ROOT)),
            WITH_SIBLINGS,
            "proposal.tree.parents",
            (ROOT,) * 4,
            "a chain with (2, 0, 1) siblings",
        ),
        (  # a leaf that goes on
            guess(1, 2, 3, 4, parents=(ROOT, 0, ROOT, 2)),
            WITH_SIBLINGS,
            "proposal.tree.parents",
            (ROOT, 0, ROOT, 2),
            "a chain with (2, 0, 1) siblings",
        ),
        (guess(1, source=Source.NGRAM), CHAIN, "proposal.source", "ngram", "model"),
        (guess(1, q=(SparseQ((1,), (1.0,)),)), CHAIN, "proposal.q", 1, "empty under the match rule"),
    ],
)
def test_anything_else_is_refused_by_name(
    proposal: Proposal, asked: Choice, field: str, value: object, limit: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(proposal, asked)
    assert (caught.value.field, caught.value.value, caught.value.limit) == (field, value, limit)


def test_a_distribution_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"proposal.q\[0\].probabilities"):
        check(guess(1, q=(SparseQ((1,), (math.nan,)),)), rule=Rule.REJECTION)


@pytest.mark.parametrize(
    ("foreseen", "field"),
    [
        ([(ROOT, 1, guess(2)), (1, 9, NO_PROPOSAL), (1, 8, guess(3))], None),
        ([], None),
        ([(ROOT, token, NO_PROPOSAL) for token in range(4)], "foreseen"),
        ([(0, 1, guess(2)), (0, 1, guess(3))], "foreseen"),  # whose is the round that follows?
        ([(2, 1, guess(2))], "foreseen.node"),
        ([(-2, 1, guess(2))], "foreseen.node"),
        ([(0, 10, guess(2))], "foreseen.next_token"),
        ([(ROOT, 1, guess(2)), (0, 1, guess(10))], "proposal.tree.tokens[0]"),
    ],
)
def test_what_is_foreseen_is_checked_too(foreseen: list[tuple[int, int, Proposal]], field: str | None) -> None:
    in_flight = TokenTree.chain((5, 6))
    if field is None:
        validate_foreseen(foreseen, in_flight, 3, CHAIN, Rule.MATCH, vocabulary_size=10)
        return
    with pytest.raises(InvalidArgument) as caught:
        validate_foreseen(foreseen, in_flight, 3, CHAIN, Rule.MATCH, vocabulary_size=10)
    assert caught.value.field == field


@given(
    st.lists(st.integers(-1, 11), max_size=6),
    st.one_of(st.none(), st.lists(st.integers(-3, 5), max_size=6)),
    st.lists(st.integers(0, 2), max_size=3),
)
def test_what_passes_can_be_cut_to_any_shape(tokens: list[int], parents: list[int] | None, siblings: list[int]) -> None:
    """Other shapes than those asked for have none of their own (`pruned`)."""
    asked = Choice(Source.MODEL, 3, tuple(siblings))
    tree = TokenTree.chain(tokens) if parents is None else TokenTree(tuple(tokens), tuple(parents))
    try:
        check(Proposal(tree, Source.MODEL), asked)
    except InvalidArgument:
        return
    for length in range(4):
        cut = pruned(tree, widths_of(length, siblings[:length]))
        assert cut.depth <= length
        assert len(cut) <= length + sum(siblings[:length])
