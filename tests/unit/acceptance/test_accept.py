"""The coordinator's decision: which nodes a verdict and its uniforms let stand."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outrider.acceptance.accept import accept
from outrider.acceptance.params import Rule
from outrider.acceptance.philox import Domain, uniform
from outrider.acceptance.proposal import NO_PROPOSAL, Outcome, Proposal, RowLogprobs, Source, Verdict
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.errors import InternalError
from tests import oracle

TREE = TokenTree((5, 6, 7, 8, 9), (ROOT, ROOT, 0, 0, 1))


def proposal_of(tree: TokenTree) -> Proposal:
    return Proposal(tree, Source.MODEL)


@st.composite
def trees(draw, max_nodes: int = 6, tokens: int = 3) -> TokenTree:
    size = draw(st.integers(0, max_nodes))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
    return TokenTree(tuple(draw(st.integers(0, tokens - 1)) for _ in range(size)), tuple(parents))


@pytest.mark.parametrize("rule", Rule)
def test_plain_decoding_is_a_round_without_nodes(rule):
    assert accept(rule, NO_PROPOSAL, Verdict((42,)), seed=1, base_length=7) == Outcome((), 42)


@pytest.mark.parametrize(
    ("next_tokens", "accepted", "last"),
    [
        ((4, 0, 0, 0, 0, 0), (), 4),
        ((5, 1, 0, 0, 0, 0), (0,), 1),
        ((5, 8, 0, 0, 2, 0), (0, 3), 2),
        ((6, 0, 9, 0, 0, 3), (1, 4), 3),
    ],
)
def test_match_walks_along_the_targets_own_draws(next_tokens, accepted, last):
    outcome = accept(Rule.MATCH, proposal_of(TREE), Verdict(next_tokens), seed=1, base_length=3)
    assert outcome == Outcome(accepted, last)
    assert outcome.tokens(TREE) == (*(TREE.tokens[node] for node in accepted), last)


@given(trees(), st.data())
def test_match_agrees_with_the_oracle_on_every_draw(tree, data):
    next_tokens = tuple(data.draw(st.integers(0, 2)) for _ in range(len(tree) + 1))
    rows = [oracle.one_hot(token, 3) for token in next_tokens]
    (accepted, last), *others = [(a, t) for a, t, weight in oracle.matched_walks(tree, rows) if weight > 0]
    assert not others
    assert accept(Rule.MATCH, proposal_of(tree), Verdict(next_tokens), seed=0, base_length=1) == Outcome(accepted, last)


@given(trees(), st.integers(0, 2**64 - 1), st.integers(1, 2**20), st.data())
def test_match_needs_no_seed(tree, seed, base_length, data):
    verdict = Verdict(tuple(data.draw(st.integers(0, 2)) for _ in range(len(tree) + 1)))
    outcomes = {
        accept(Rule.MATCH, proposal_of(tree), verdict, seed=s, base_length=b) for s, b in ((0, 1), (seed, base_length))
    }
    assert len(outcomes) == 1


@settings(max_examples=200)
@given(trees(), st.integers(0, 2**64 - 1), st.integers(1, 1000), st.data())
def test_rejection_takes_the_first_child_whose_uniform_passes(tree, seed, base_length, data):
    thresholds = tuple(data.draw(st.floats(0, 1)) for _ in range(len(tree)))
    verdict = Verdict(tuple(range(100, 101 + len(tree))), thresholds)
    outcome = accept(Rule.REJECTION, proposal_of(tree), verdict, seed=seed, base_length=base_length)

    depths = tree.depths()
    passes = [
        uniform(seed, Domain.ACCEPT, base_length + depths[node] - 1, base_length, node) < thresholds[node]
        for node in range(len(tree))
    ]
    expected, node = [], ROOT
    while children := [child for child in tree.children(node) if passes[child]]:
        node = children[0]
        expected.append(node)
    assert outcome == Outcome(tuple(expected), 101 + node)


@settings(max_examples=200)
@given(st.integers(0, 8), st.integers(0, 2**64 - 1), st.integers(1, 1000), st.data())
def test_block_takes_the_longest_prefix_that_passes(size, seed, base_length, data):
    thresholds = tuple(data.draw(st.floats(0, 1)) for _ in range(size))
    verdict = Verdict(tuple(range(size + 1)), thresholds)
    outcome = accept(Rule.BLOCK, proposal_of(TokenTree.chain(range(size))), verdict, seed=seed, base_length=base_length)
    passed = [
        node + 1
        for node in range(size)
        if uniform(seed, Domain.ACCEPT, base_length + node, base_length, node) < thresholds[node]
    ]
    longest = max(passed, default=0)
    assert outcome == Outcome(tuple(range(longest)), longest)


@pytest.mark.parametrize(
    ("rule", "tree", "thresholds"),
    [
        (Rule.REJECTION, TREE, (0.5, 0.7, 0.3, 0.6, 0.9)),
        (Rule.BLOCK, TokenTree.chain((1, 2, 3)), (0.8, 0.3, 0.4)),
    ],
)
def test_walks_are_as_frequent_as_their_thresholds_say(rule, tree, thresholds):
    """30,000 rounds that differ in nothing but the base length, as the rounds of one session do."""
    verdict = Verdict((0,) * (len(tree) + 1), thresholds)
    rounds = 30_000
    seen = Counter(
        accept(rule, proposal_of(tree), verdict, seed=2024, base_length=base).accepted for base in range(1, rounds + 1)
    )
    expected = {accepted: weight * rounds for accepted, weight in oracle.walks(rule, tree, thresholds) if weight > 0}
    assert seen.keys() == expected.keys()
    assert stats.chisquare([seen[walk] for walk in expected], list(expected.values())).pvalue > 1e-3


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_thresholds_zero_and_one_are_certain(rule):
    tree = TokenTree.chain((1, 2))
    for base_length, (first, second) in itertools.product(range(1, 500), itertools.product((0.0, 1.0), repeat=2)):
        accepted = accept(
            rule, proposal_of(tree), Verdict((0,) * 3, (first, second)), seed=9, base_length=base_length
        ).accepted
        if rule is Rule.BLOCK:
            assert len(accepted) == (2 if second else 1 if first else 0)
        else:
            assert len(accepted) == (0 if not first else 2 if second else 1)


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        (Rule.MATCH, Verdict(())),
        (Rule.MATCH, Verdict((1, 2))),
        (Rule.MATCH, Verdict((1, 2, 3, 4))),
        (Rule.MATCH, Verdict((1, 2, 3), (0.5, 0.5))),
        (Rule.MATCH, Verdict((1, -2, 3))),
        (Rule.REJECTION, Verdict((1, 2, 3))),
        (Rule.REJECTION, Verdict((1, 2, 3), (0.5,))),
        (Rule.REJECTION, Verdict((1, 2, 3), (0.5, 1.5))),
        (Rule.REJECTION, Verdict((1, 2, 3), (-0.5, 0.5))),
        (Rule.REJECTION, Verdict((1, 2, 3), (math.nan, 0.5))),
        (Rule.BLOCK, Verdict((1, 2, 3), (0.5, 0.5, 0.5))),
        (Rule.MATCH, Verdict((1, 2, 3), (), (RowLogprobs((1,), (-0.1,)),))),
    ],
)
def test_a_verdict_that_cannot_be_for_the_proposal_is_refused(rule, verdict):
    with pytest.raises(InternalError, match="verdict"):
        accept(rule, proposal_of(TokenTree.chain((1, 2))), verdict, seed=1, base_length=1)


def test_block_refuses_branches():
    with pytest.raises(InternalError, match="block"):
        accept(Rule.BLOCK, proposal_of(TREE), Verdict((0,) * 6, (0.5,) * 5), seed=1, base_length=1)


def test_a_repeated_round_repeats_its_outcome():
    """A reply that is lost and asked for again, or a failover in mid-round, must not roll the dice anew."""
    generator = random.Random(3)
    for base_length in range(1, 200):
        verdict = Verdict((0,) * 6, tuple(generator.random() for _ in range(5)))
        outcomes = {
            accept(Rule.REJECTION, proposal_of(TREE), verdict, seed=8, base_length=base_length) for _ in range(2)
        }
        assert len(outcomes) == 1
