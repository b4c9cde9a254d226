"""Mistakes that systems of this kind have made, made on purpose: the checks of this package must catch each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from outrider.acceptance import accept as accept_module
from outrider.acceptance.params import Rule
from outrider.acceptance.philox import Domain, uniform
from outrider.acceptance.proposal import Proposal, Source, Verdict
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.errors import InvalidArgument
from outrider.sampling import verify as verify_module
from outrider.sampling.noise import gumbel, noise_keys
from tests import oracle
from tests.oracle import Case, Judgement
from tests.unit.sampling.sessions import chain, logits_of, open_state, sparse, verify_one
from tests.unit.sampling.simulation import (
    SIGNIFICANCE,
    Pair,
    Propose,
    Session,
    assert_follows,
    chains,
    pair_p_value,
    random_pair,
    simulate,
    softmax_of,
    triple_p_value,
)

PAIR = random_pair()
SESSIONS, TOKENS = 2_000, 9


def simulated(rule: Rule, propose: Propose, **options) -> torch.Tensor:
    return simulate(PAIR, rule, propose, sessions=SESSIONS, tokens=TOKENS, **options)


def argmax_chains(*, honest: bool) -> Propose:
    """A drafter that proposes its likeliest tokens, and says so or claims to have sampled."""

    def propose(pair: Pair, sessions: Sequence[Session]) -> list[Proposal]:
        likeliest = pair.drafter.argmax(dim=1).tolist()
        softmaxes = [softmax_of(pair, token) for token in range(len(likeliest))]
        proposals = []
        for session in sessions:
            last = session.tokens[-1]
            first, second = likeliest[last], likeliest[likeliest[last]]
            q = () if honest else (softmaxes[last], softmaxes[first])
            proposals.append(Proposal(TokenTree.chain((first, second)), Source.MODEL, q))
        return proposals

    return propose


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_case_01_argmax_drafts_with_softmax_q(rule):
    assert_follows(simulated(rule, argmax_chains(honest=True)), PAIR.target)
    with pytest.raises(AssertionError, match="steps"):
        assert_follows(simulated(rule, argmax_chains(honest=False)), PAIR.target)


def test_case_08_zero_filled_q_is_refused_and_would_be_wrong():
    """A miss that answers with zeros: p / 0 accepts whatever token stands there."""
    missing = Proposal(TokenTree.chain((2,)), Source.MODEL, (sparse([0.0, 0.0, 0.0]),))
    with pytest.raises(InvalidArgument, match="q"):
        verify_one(open_state(3, rule=Rule.REJECTION), logits_of([[0.25, 0.25, 0.5]] * 2), missing)
    zeros = replace(missing.q[0], token_ids=(0, 1, 2), probabilities=(0.0,) * 3)
    with pytest.raises(InvalidArgument, match="sum to 0"):
        verify_one(open_state(3, rule=Rule.REJECTION), logits_of([[0.25, 0.25, 0.5]] * 2), replace(missing, q=(zeros,)))

    def accept_all(verdict: Verdict, proposal: Proposal) -> Verdict:
        return verdict._replace(thresholds=(1.0,) * len(proposal))

    def stale(pair: Pair, sessions: Sequence[Session]) -> list[Proposal]:
        return [chain(0) for _ in sessions]

    assert_follows(simulated(Rule.REJECTION, stale), PAIR.target)
    with pytest.raises(AssertionError, match="steps"):
        assert_follows(simulated(Rule.REJECTION, stale, alter=accept_all), PAIR.target)


def test_siblings_accepted_independently():
    """Judging a second sibling against p itself, not against what the first left, accepts too much of what q likes."""

    def independent(cases: Sequence[Case]) -> list[Judgement]:
        found = []
        for tree, p, q in cases:
            _, rows = oracle.judge_rejection(tree, p, q)
            pairs = zip(tree.tokens, tree.parents, q, strict=True)
            found.append(([min(1, p[parent + 1][token] / own[token]) for token, parent, own in pairs], rows))
        return found

    p, q = PAIR.target.tolist(), PAIR.drafter.tolist()
    models = (lambda path: p[path[-1] if path else 0]), (lambda path: q[path[-1] if path else 0])
    assert oracle.error_of_round(Rule.REJECTION, (ROOT, ROOT), *models) < 1e-9
    assert oracle.error_of_round(Rule.REJECTION, (ROOT, ROOT), *models, independent) > 0.01


def test_case_02_half_precision_likelihood_ratios():
    """Products of probabilities underflow to 0 / 0 in half precision; no comparison with NaN rejects anything."""
    size = 128
    tables = [[0.5 / size, 1.5 / size] * (size // 2), [1.0 / size] * size]  # p prefers odd tokens, q is indifferent
    target, drafter = (torch.tensor(table, dtype=torch.float64).expand(size, size) for table in tables)

    def half_precision(verdict: Verdict, proposal: Proposal) -> Verdict:
        p = target.half()[0, list(proposal.tree.tokens)].cumprod(0)
        q = drafter.half()[0, list(proposal.tree.tokens)].cumprod(0)
        falls = p / q < 1.0  # NaN is not
        return verdict._replace(thresholds=tuple(torch.where(falls, p / q, 1.0).tolist()))

    def parities(**options) -> torch.Tensor:
        return (
            simulate(Pair(target, drafter), Rule.BLOCK, own_chains(Domain.DRAFT, 4), sessions=800, tokens=6, **options)
            % 2
        )

    wanted = torch.tensor([[0.25, 0.75]] * 2, dtype=torch.float64)
    assert_follows(parities(), wanted)
    with pytest.raises(AssertionError, match="steps"):
        assert_follows(parities(alter=half_precision), wanted)


def own_chains(domain: Domain, length: int = 3, *, fresh: bool = True) -> Propose:
    """Chains as `draft_rows` draws them, with the noise of any domain; not `fresh`: the same noise in every round."""

    def propose(pair: Pair, sessions: Sequence[Session]) -> list[Proposal]:
        log_q = pair.drafter.log().to(torch.float32)
        size = len(log_q)
        seeds = noise_keys(((s.state.seed, 0, 0, domain) for s in sessions), log_q.device)
        seeds = seeds[:, 0] + (seeds[:, 1] << 32)
        base = torch.tensor([len(s.tokens) for s in sessions])
        last = torch.tensor([s.tokens[-1] for s in sessions])
        before, drawn = [], []
        for step in range(length):
            before.append(last)
            noise = gumbel(seeds, base + step, base if fresh else torch.zeros_like(base), domain, size)
            last = (log_q[last] + noise).argmax(1)
            drawn.append(last)
        distributions = [softmax_of(pair, token) for token in range(size)]
        return [
            Proposal(TokenTree.chain(tokens), Source.MODEL, tuple(distributions[token] for token in above))
            for tokens, above in zip(torch.stack(drawn, 1).tolist(), torch.stack(before, 1).tolist(), strict=True)
        ]

    return propose


def test_own_chains_are_what_the_draft_service_draws():
    sessions = [
        Session(open_state(3, rule=Rule.BLOCK, seed=seed), [0, 1, seed % 3]) for seed in range(2**63, 2**63 + 50)
    ]
    ours, theirs = own_chains(Domain.DRAFT)(PAIR, sessions), chains(3)(PAIR, sessions)
    assert [proposal.tree for proposal in ours] == [proposal.tree for proposal in theirs]


@pytest.mark.parametrize(
    ("drafts", "acceptance", "right"),
    [
        pytest.param(Domain.DRAFT, Domain.ACCEPT, True, id="disjoint"),
        pytest.param(Domain.RESIDUAL, Domain.ACCEPT, False, id="drafts-and-residuals"),
        pytest.param(Domain.DRAFT, Domain.DRAFT, False, id="drafts-and-acceptance"),
    ],
)
def test_case_09_shared_noise(drafts, acceptance, right, monkeypatch):
    """Draws from overlapping counters are correlated; how a token was drafted then decides its own acceptance."""
    monkeypatch.setattr(accept_module, "Domain", SimpleNamespace(ACCEPT=acceptance))
    pair = random_pair(8, seed=1, likeness=0.0)
    tokens = simulate(pair, Rule.REJECTION, own_chains(drafts), sessions=4000, tokens=6)
    assert (pair_p_value(tokens, pair.target) > SIGNIFICANCE) is right


@pytest.mark.parametrize(("rule", "right"), [(Rule.REJECTION, True), (Rule.BLOCK, False)])
def test_noise_reused_across_rounds(rule, right, monkeypatch):
    """Noise by position alone, as `match` has it, would be right for `rejection`: what lies behind the first rejected
    token had no influence. Under `block` it had: it decided how long the prefix before it became."""

    def by_position(seed: int, domain: Domain, position: int, base_length: int, lane: int) -> float:
        return uniform(seed, domain, position, 0, 0)

    monkeypatch.setattr(accept_module, "uniform", by_position)
    monkeypatch.setattr(verify_module, "_key", lambda row: (row.state.seed, row.position, 0, Domain.RESIDUAL))
    tokens = simulated(rule, own_chains(Domain.DRAFT, fresh=False))
    assert (min(pair_p_value(tokens, PAIR.target), triple_p_value(tokens, PAIR.target)) > SIGNIFICANCE) is right
