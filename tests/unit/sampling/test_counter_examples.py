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
    Pair,
    Propose,
    Session,
    assert_follows,
    chains,
    random_pair,
    simulate,
    softmax_of,
)

PAIR = random_pair()
SESSIONS, TOKENS = 16_000, 10


def simulated(rule: Rule, propose: Propose, **options) -> torch.Tensor:
    return simulate(PAIR, rule, propose, sessions=SESSIONS, tokens=TOKENS, **options)


def likeliest(pair: Pair, token: int) -> int:
    return int(pair.drafter[token].argmax())


def argmax_chains(*, honest: bool) -> Propose:
    """A drafter that proposes its likeliest tokens, and says so or claims to have sampled."""

    def propose(pair: Pair, sessions: Sequence[Session]) -> list[Proposal]:
        proposals = []
        for session in sessions:
            first = likeliest(pair, session.tokens[-1])
            q = () if honest else (softmax_of(pair, session.tokens[-1]), softmax_of(pair, first))
            proposals.append(Proposal(TokenTree.chain((first, likeliest(pair, first))), Source.MODEL, q))
        return proposals

    return propose


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_case_01_argmax_drafts_with_softmax_q(rule):
    assert_follows(simulated(rule, argmax_chains(honest=True)), PAIR.target)
    with pytest.raises(AssertionError, match="steps"):
        assert_follows(simulated(rule, argmax_chains(honest=False)), PAIR.target)


def test_case_08_zero_filled_q_is_refused_and_would_be_wrong():
    """A miss that answers with zeros: p / 0 accepts whatever token stands there."""
    missing = Proposal(TokenTree.chain((3,)), Source.MODEL, (sparse([0.0, 0.0, 0.0, 0.0]),))
    with pytest.raises(InvalidArgument, match="q"):
        verify_one(open_state(4, rule=Rule.REJECTION), logits_of([[0.25] * 4] * 2), missing)
    zeros = replace(missing.q[0], token_ids=(0, 1, 2, 3), probabilities=(0.0,) * 4)
    with pytest.raises(InvalidArgument, match="sum of 1"):
        verify_one(open_state(4, rule=Rule.REJECTION), logits_of([[0.25] * 4] * 2), replace(missing, q=(zeros,)))

    def accept_all(verdict: Verdict, proposal: Proposal) -> Verdict:
        return replace(verdict, thresholds=(1.0,) * len(proposal))

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
    size, length = 128, 4
    rare, common = 0.5 / size, 1.5 / size
    p_token, q_token = (rare, common), 1.0 / size  # even tokens are rare in p, odd ones common; q is uniform

    def half_ratio(tokens: Sequence[int]) -> float:
        p = q = torch.tensor(1.0, dtype=torch.float16)
        for token in tokens:
            p, q = p * p_token[token % 2], q * q_token
        return float(p / q)

    deep = half_ratio((0,) * length)
    assert not deep < 1.0  # NaN, while the true ratio is 1/16: every draft would stand, and the output would follow q

    row = [p_token[token % 2] for token in range(size)]
    q = sparse([q_token] * size)
    verdict = verify_one(open_state(size, rule=Rule.BLOCK), logits_of([row] * 5), chain(0, 0, 0, 0, q=(q,) * length))
    assert verdict.thresholds[-1] == pytest.approx(0.5**length, rel=1e-5)
    verdict = verify_one(
        open_state(size, rule=Rule.REJECTION), logits_of([row] * 5), chain(0, 1, 0, 1, q=(q,) * length)
    )
    assert verdict.thresholds == pytest.approx((0.5, 1.0, 0.5, 1.0), rel=1e-5)


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
        Session(open_state(4, rule=Rule.BLOCK, seed=seed), [0, 1, seed % 4]) for seed in range(2**63, 2**63 + 50)
    ]
    ours, theirs = own_chains(Domain.DRAFT)(PAIR, sessions), chains(3)(PAIR, sessions)
    assert [proposal.tree for proposal in ours] == [proposal.tree for proposal in theirs]


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_case_09_drafter_noise_shared_with_the_residual(rule):
    assert_follows(simulated(rule, own_chains(Domain.DRAFT)), PAIR.target)
    with pytest.raises(AssertionError, match="steps"):
        assert_follows(simulated(rule, own_chains(Domain.RESIDUAL)), PAIR.target)


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_case_09_drafter_noise_shared_with_the_acceptance_draws(rule, monkeypatch):
    monkeypatch.setattr(accept_module, "Domain", SimpleNamespace(ACCEPT=Domain.DRAFT))
    with pytest.raises(AssertionError, match="steps"):
        assert_follows(simulated(rule, chains(3)), PAIR.target)


def test_noise_reused_across_rounds(monkeypatch):
    """Noise by position alone is right for `match`. Under `block`, though, what was drafted at later positions has
    already had its say in how long the earlier prefix became, so a second round there must not see it again."""
    monkeypatch.setattr(
        accept_module, "uniform", lambda seed, domain, position, _, lane: uniform(seed, domain, position, 0, 0)
    )
    monkeypatch.setattr(verify_module, "_key", lambda row: (row.state.seed, row.position, 0, Domain.RESIDUAL))
    with pytest.raises(AssertionError, match="steps"):
        assert_follows(simulated(Rule.BLOCK, own_chains(Domain.DRAFT, fresh=False)), PAIR.target)
