"""Every rule against the exact oracle: the distribution of a round is the target's own.

The oracle enumerates all drafts, all acceptance draws and all next tokens. First it is held against the mathematics in
exact fractions; then the torch code is put in the place of its rules, and judged by the same enumeration.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import Proposal, Source
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.sampling.distribution import scores_of
from outrider.sampling.residual import JUDGES, ProposalAt
from outrider.sampling.verify import VerifyRows, verify_rows
from tests import oracle
from tests.oracle import Case, Distribution, Judge, Judgement, Model, Path
from tests.unit.sampling.devices import CPU, on_each_device
from tests.unit.sampling.sessions import logits_of, open_state, sparse

CHAIN = (ROOT, 0, 1)
PAIR = (ROOT, ROOT)
TRIPLE = (ROOT, ROOT, ROOT)
FORK = (ROOT, ROOT, 0, 0)
TREES = [(), (ROOT,), CHAIN, PAIR, TRIPLE, FORK, (ROOT, 0, ROOT, 2)]
CHAINS = [(), (ROOT,), (ROOT, 0), CHAIN]
SHAPES = {Rule.MATCH: TREES, Rule.REJECTION: TREES, Rule.BLOCK: CHAINS}
RULES_AND_SHAPES = [(rule, shape) for rule in Rule for shape in SHAPES[rule]]


def model_of(seed: int, size: int, *, zeros: bool) -> Model:
    """A model with its own random distribution after every path; with `zeros`, many tokens are impossible."""

    def distribution(path: Path) -> Distribution:
        generator = random.Random(f"{seed} {path}")
        weights = [generator.choice((0, 0, 1, 2, 7)) if zeros else generator.randint(1, 9) for _ in range(size)]
        weights[generator.randrange(size)] += 1
        return [Fraction(weight, sum(weights)) for weight in weights]

    return distribution


models = st.builds(model_of, st.integers(0, 10_000), st.just(3), zeros=st.booleans())


def implementation(rule: Rule, device: torch.device = CPU) -> Judge:
    """The torch code as a judge for the oracle's enumeration: all drafts are sessions of one batch."""

    def judge(cases: Sequence[Case]) -> list[Judgement]:
        state = open_state(len(cases[0][1][0]), rule=rule, device=device)
        work = [VerifyRows(state, 1, proposal_of(rule, tree, q)) for tree, _, q in cases]
        logits = logits_of([row for _, p, _ in cases for row in p], device)
        scores = scores_of(logits, [row for entry in work for row in entry.rows()])
        firsts = list(itertools.accumulate(map(len, work), initial=0))
        proposals = [ProposalAt(entry.proposal, first) for entry, first in zip(work, firsts, strict=False)]
        if rule in JUDGES and len(work[0].proposal):
            JUDGES[rule](scores, proposals)
        chances = scores.to(torch.float64).softmax(dim=1).tolist()
        # Thresholds as they are sent, after rounding.
        verdicts = verify_rows(logits, work)
        return [
            (list(verdict.thresholds), chances[first : first + len(entry)])
            for verdict, entry, first in zip(verdicts, work, firsts, strict=False)
        ]

    return judge


def proposal_of(rule: Rule, tree: TokenTree, q: Sequence[Distribution]) -> Proposal:
    return Proposal(tree, Source.MODEL, () if rule is Rule.MATCH else tuple(map(sparse, q)))


@pytest.mark.parametrize(("rule", "shape"), RULES_AND_SHAPES)
@settings(max_examples=6)
@given(models, models)
def test_the_oracle_itself_is_exact(rule, shape, target, drafter):
    assert oracle.error_of_round(rule, shape, target, drafter) == 0


@on_each_device
@pytest.mark.parametrize(("rule", "shape"), RULES_AND_SHAPES)
@settings(max_examples=4)
@given(models, models)
def test_a_round_commits_the_targets_distribution(rule, shape, device, target, drafter):
    assert oracle.error_of_round(rule, shape, target, drafter, implementation(rule, device)) < 3e-6


@on_each_device
@pytest.mark.parametrize(("rule", "shape"), [(r, s) for r, s in RULES_AND_SHAPES if s and r is not Rule.MATCH])
@settings(max_examples=15)
@given(models, models, st.integers(0, 2**32))
def test_thresholds_and_residuals_equal_the_oracles(rule, shape, device, target, drafter, seed):
    tree, q, _ = random.Random(seed).choice(list(oracle.drafted_trees(shape, drafter)))
    p = oracle.rows_of(tree, target)
    thresholds, rows = oracle.JUDGES[rule](tree, p, q)
    ((found_thresholds, found_rows),) = implementation(rule, device)([(tree, p, q)])

    reachable = reachable_rows(rule, tree, thresholds)
    for node in range(len(tree)):
        if rule is Rule.BLOCK or tree.parents[node] + 1 in reachable:
            assert found_thresholds[node] == pytest.approx(float(thresholds[node]), abs=2e-6)
    for row in reachable:
        assert found_rows[row] == pytest.approx([float(chance) for chance in rows[row]], abs=2e-5)
        assert sum(found_rows[row]) == pytest.approx(1.0, abs=1e-9)


def reachable_rows(rule: Rule, tree: TokenTree, thresholds) -> set[int]:
    """Rows where a walk can end or pass; what a verdict says of others is never read."""
    passed = {accepted for accepted, weight in oracle.walks(rule, tree, thresholds) if weight > 0}
    return {0} | {node + 1 for accepted in passed for node in accepted}


@on_each_device
@pytest.mark.parametrize(("rule", "shape"), RULES_AND_SHAPES)
@settings(max_examples=4)
@given(st.integers(0, 10_000), models)
def test_an_impossible_token_is_never_emitted(rule, shape, device, seed, drafter):
    """Not rarely: the sum over every draw that emits it is exactly zero."""
    target = model_of(seed, 3, zeros=True)
    committed, _ = oracle.round_distribution(rule, shape, target, drafter, implementation(rule, device))
    for tokens, weight in committed.items():
        for depth, token in enumerate(tokens):
            if target(tokens[:depth])[token] == 0:
                assert weight == 0


@pytest.mark.parametrize("shape", CHAINS)
@settings(max_examples=15)
@given(models, models)
def test_block_accepts_at_least_as_much_as_rejection(shape, target, drafter):
    """Sun et al. 2024, theorem 2: in exact fractions for the oracle, to rounding for the torch code."""
    _, by_rejection = oracle.round_distribution(Rule.REJECTION, shape, target, drafter)
    _, by_block = oracle.round_distribution(Rule.BLOCK, shape, target, drafter)
    assert by_block >= by_rejection
    _, found = oracle.round_distribution(Rule.BLOCK, shape, target, drafter, implementation(Rule.BLOCK))
    assert found == pytest.approx(float(by_block), abs=1e-5)


def test_block_accepts_strictly_more_somewhere():
    """The first example of Sun et al. 2024: p = (1/3, 2/3), q = (2/3, 1/3), two drafted tokens."""
    target: Model = lambda path: [Fraction(1, 3), Fraction(2, 3)]  # noqa: E731
    drafter: Model = lambda path: [Fraction(2, 3), Fraction(1, 3)]  # noqa: E731
    assert oracle.round_distribution(Rule.REJECTION, (ROOT, 0), target, drafter)[1] == Fraction(10, 9)
    assert oracle.round_distribution(Rule.BLOCK, (ROOT, 0), target, drafter)[1] == Fraction(11, 9)


@settings(max_examples=25)
@given(models, models)
def test_first_token_is_accepted_with_one_minus_total_variation(target, drafter):
    """Leviathan et al. 2023, corollary 3.6; no rule can do better with one draft."""
    overlap = sum(map(min, target(()), drafter(())))
    for rule in (Rule.REJECTION, Rule.BLOCK):
        assert oracle.round_distribution(rule, (ROOT,), target, drafter)[1] == overlap


@on_each_device
@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_a_deterministic_drafter_is_one_hot(rule, device):
    """Empty q and an explicit one-hot q are the same, and both are exact."""
    target = model_of(4, 3, zeros=False)
    tree = TokenTree.chain((1, 0, 2))
    p = oracle.rows_of(tree, target)
    q = [oracle.one_hot(token, 3) for token in tree.tokens]
    thresholds, _ = oracle.JUDGES[rule](tree, p, q)
    state = open_state(3, rule=rule, device=device)
    for sent in ((), tuple(map(sparse, q))):
        verdict = verify_rows(logits_of(p, device), [VerifyRows(state, 1, Proposal(tree, Source.NGRAM, sent))])[0]
        assert verdict.thresholds == pytest.approx([float(threshold) for threshold in thresholds], abs=1e-6)
    if rule is Rule.REJECTION:
        assert thresholds == [row[token] for row, token in zip(p, tree.tokens, strict=False)]
