"""Verdicts: whose rows are whose, what greedy means, and what a client may ask for beside them."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
import torch

from outrider.acceptance.accept import accept
from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.philox import Domain
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, Verdict
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.errors import InternalError, InvalidArgument
from outrider.sampling.distribution import Row, UnusableLogits, scores_of
from outrider.sampling.draw import draw
from outrider.sampling.noise import gumbel_of_all, noise_keys
from outrider.sampling.verify import VerifyRows, verify_rows
from tests import oracle
from tests.unit.sampling.devices import CPU, on_each_device
from tests.unit.sampling.sessions import chain, logits_of, open_state, sparse, verify_one

SIZE, WIDTH = 40, 48

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=0.0, frequency_penalty=0.7),
    SamplingParams(temperature=1.5, top_k=5, min_p=0.02),
    SamplingParams(temperature=0.6, repetition_penalty=1.4, logit_bias=((3, 4.0), (7, -100.0))),
    SamplingParams(min_tokens=50),
]


def random_tree(generator: random.Random, size: int, *, chain_only: bool) -> TokenTree:
    parents = [node - 1 if chain_only else generator.randrange(ROOT, node) for node in range(size)]
    return TokenTree(tuple(generator.randrange(SIZE) for _ in range(size)), tuple(parents))


def random_entry(generator: random.Random, device: torch.device) -> VerifyRows:
    rule = generator.choice(list(Rule))
    params = generator.choice(PARAMS)
    tree = random_tree(generator, generator.randrange(6), chain_only=rule is Rule.BLOCK)
    q = []
    if rule is not Rule.MATCH and generator.random() < 0.7:
        for token in tree.tokens:
            support = {token, *(generator.randrange(SIZE) for _ in range(5))}
            q.append(sparse([generator.random() + 0.1 if t in support else 0.0 for t in range(SIZE)]))
        q = [dataclasses.replace(d, probabilities=tuple(p / sum(d.probabilities) for p in d.probabilities)) for d in q]
    state = open_state(
        SIZE,
        prompt=(1, 2),
        output=tuple(generator.randrange(SIZE) for _ in range(generator.randrange(5))),
        rule=rule,
        seed=generator.getrandbits(64),
        logprobs=generator.choice((None, 0, 3)),
        stop_token_ids=(0, 5),
        device=device,
        **dataclasses.asdict(params),
    )
    return VerifyRows(state, state.length, Proposal(tree, Source.MODEL, tuple(q)))


def assert_same(found: Verdict, wanted: Verdict) -> None:
    assert found.next_tokens == wanted.next_tokens
    assert found.thresholds == pytest.approx(wanted.thresholds, abs=1e-6)
    assert len(found.logprobs) == len(wanted.logprobs)
    for row, right in zip(found.logprobs, wanted.logprobs, strict=True):
        assert row.token_ids == right.token_ids
        assert row.logprobs == pytest.approx(right.logprobs, abs=1e-5)


@on_each_device
@pytest.mark.parametrize("seed", range(4))
def test_case_06_results_depend_on_neither_batch_nor_order(seed, device):
    """Forty sessions of every rule and many parameters: together, alone, and in another order."""
    generator = random.Random(seed)
    work = [random_entry(generator, device) for _ in range(40)]
    parts = [
        torch.randn(len(entry), WIDTH, generator=torch.Generator().manual_seed(i)) * 3 for i, entry in enumerate(work)
    ]
    parts = [part.to(device) for part in parts]
    together = verify_rows(torch.cat(parts), work)
    order = list(range(len(work)))
    generator.shuffle(order)
    shuffled = verify_rows(torch.cat([parts[i] for i in order]), [work[i] for i in order])
    for i, (entry, logits) in enumerate(zip(work, parts, strict=True)):
        (alone,) = verify_rows(logits, [entry])
        assert_same(together[i], alone)
        assert_same(shuffled[order.index(i)], alone)
        assert len(alone.next_tokens) == len(entry)


@on_each_device
def test_devices_decide_alike(device):
    generators = random.Random(5), random.Random(5)
    here, there = ([random_entry(g, d) for _ in range(40)] for g, d in zip(generators, (CPU, device), strict=True))
    logits = torch.randn(sum(map(len, here)), WIDTH, generator=torch.Generator().manual_seed(0)) * 3
    for one, other in zip(verify_rows(logits, here), verify_rows(logits.to(device), there), strict=True):
        assert_same(other, one)


@on_each_device
def test_case_04_greedy_rows_beside_sampled_ones(device):
    logits = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1)).to(device)
    for rule in Rule:
        work = [
            VerifyRows(open_state(SIZE, rule=rule, seed=seed, temperature=t, device=device), 1, chain(3))
            for seed, t in ((1, 0.0), (2, 0.8), (3, 0.0))
        ]
        verdicts = verify_rows(logits, work)
        likeliest = logits[:, :SIZE].argmax(1).tolist()
        for place, verdict in enumerate(verdicts):
            outcome = accept(rule, work[place].proposal, verdict, seed=9, base_length=1)
            assert len(outcome.accepted) in (0, 1)
            if place != 1:
                assert verdict.next_tokens == tuple(likeliest[2 * place : 2 * place + 2])


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_case_04_the_seed_is_irrelevant_at_temperature_zero(rule, penalty):
    logits = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(1))
    first, second = logits.argmax(1).tolist()[:2]
    for tokens, accepted in (((first, second), 2), ((first, second + 1), 1), ((first + 1, second), 0)):
        verdicts = set()
        for seed in (0, 1, 2**64 - 1):
            state = open_state(SIZE, rule=rule, seed=seed, temperature=0.0, presence_penalty=penalty, prompt=(39,))
            verdict = verify_one(state, logits, chain(*tokens))
            verdicts.add(verdict)
            assert len(accept(rule, chain(*tokens), verdict, seed=seed, base_length=1).accepted) == accepted
        assert len(verdicts) == 1


@on_each_device
@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
@pytest.mark.parametrize("size", [4, 30])
def test_case_02_equal_p_and_q_accept_everything(rule, size, device):
    """Nothing is left of p, so the (never read) residual is p itself; nothing is NaN."""
    p = torch.randn(size, generator=torch.Generator().manual_seed(2)).mul(3).softmax(0).tolist()
    state = open_state(size, rule=rule, device=device)
    verdict = verify_one(state, logits_of([p] * 4, device), chain(0, 1, 2, q=[sparse(p)] * 3))
    assert verdict.thresholds == pytest.approx((1.0,) * 3, abs=1e-5)
    assert all(math.isfinite(threshold) for threshold in verdict.thresholds)


@on_each_device
@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_case_02_an_empty_residual_draws_from_p(rule, device):
    p = [0.5, 0.25, 0.25, 0.0]
    work = [
        VerifyRows(open_state(4, rule=rule, seed=seed, device=device), 1, chain(0, q=[sparse(p)]))
        for seed in range(400)
    ]
    drawn = [verdict.next_tokens[0] for verdict in verify_rows(logits_of([p] * 800, device), work)]
    assert [drawn.count(token) / 400 for token in range(4)] == pytest.approx(p, abs=0.08)
    assert 3 not in drawn


def test_case_03_a_token_outside_the_nucleus_is_always_rejected():
    q = sparse([0.1, 0.9])
    state = open_state(2, rule=Rule.REJECTION, temperature=0.7, top_p=0.5)
    verdict = verify_one(state, logits_of([[0.6, 0.4]] * 2), chain(1, q=[q]))
    assert verdict.thresholds == (0.0,)
    assert verdict.next_tokens == (0, 0)


@on_each_device
@pytest.mark.parametrize("rule", Rule)
def test_impossible_tokens_are_never_drawn(rule, device):
    """Half of the vocabulary is impossible, and proposed all the same."""
    row = [0.0 if token % 2 else 1.0 / 8 for token in range(16)]
    q = sparse([1.0 / 16] * 16)
    proposal = chain(1, 3, q=() if rule is Rule.MATCH else (q, q))
    work = [VerifyRows(open_state(16, rule=rule, seed=seed, device=device), 1, proposal) for seed in range(2000)]
    for entry, verdict in zip(work, verify_rows(logits_of([row] * 6000, device), work), strict=True):
        assert all(token % 2 == 0 for token in verdict.next_tokens)
        assert accept(rule, proposal, verdict, seed=entry.state.seed, base_length=1).accepted == ()


@on_each_device
def test_padding_is_never_emitted(device):
    logits = torch.zeros(1, WIDTH, device=device)
    logits[:, SIZE:] = 50.0
    for rule in Rule:
        for temperature in (0.0, 5.0):
            work = [
                VerifyRows(
                    open_state(SIZE, rule=rule, seed=seed, temperature=temperature, device=device), 1, NO_PROPOSAL
                )
                for seed in range(200)
            ]
            assert all(v.next_tokens[0] < SIZE for v in verify_rows(logits.expand(200, -1), work))


@on_each_device
@pytest.mark.parametrize("rule", Rule)
def test_case_16_logprobs_are_the_targets_own(rule, device):
    """Before temperature and truncation: k likeliest in order, then the next token and the children not among them."""
    logits = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(3)).to(device) * 2
    tree = TokenTree((11, 12, 13), (ROOT, ROOT, 0)) if rule is not Rule.BLOCK else TokenTree.chain((11, 12, 13))
    state = open_state(SIZE, rule=rule, logprobs=2, temperature=0.3, top_k=7, device=device)
    verdict = verify_one(state, logits, Proposal(tree, Source.NGRAM))
    wanted = logits[:, :SIZE].cpu().to(torch.float64).log_softmax(1)
    for row, found in enumerate(verdict.logprobs):
        children = [tree.tokens[child] for child in tree.children(row - 1)]
        likeliest = wanted[row].topk(2).indices.tolist()
        others = [t for t in dict.fromkeys((verdict.next_tokens[row], *children)) if t not in likeliest]
        assert list(found.token_ids) == likeliest + others
        assert found.logprobs == pytest.approx([wanted[row, token].item() for token in found.token_ids], abs=1e-5)
    assert 0.0 not in [value for row in verdict.logprobs for value in row.logprobs]


def test_case_16_logprobs_equal_those_of_plain_decoding():
    state = open_state(SIZE, logprobs=2)
    logits = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(3))
    plain = verify_one(state, logits[:1]).logprobs[0]
    speculative = verify_one(state, logits, chain(*verify_one(state, logits[:1]).next_tokens, 5)).logprobs[0]
    assert speculative == plain


def test_logprobs_zero_gives_the_tokens_alone_and_none_gives_nothing():
    logits = torch.randn(1, SIZE, generator=torch.Generator().manual_seed(3))
    verdict = verify_one(open_state(SIZE, logprobs=0), logits)
    assert verdict.logprobs[0].token_ids == verdict.next_tokens
    assert verify_one(open_state(SIZE), logits).logprobs == ()


@on_each_device
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 3}, {"rule": Rule.REJECTION}])
def test_unusable_logits_name_their_sessions_and_spare_the_others(device, options):
    logits = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(3)).to(device)
    logits[3, 2] = math.nan
    work = [VerifyRows(open_state(SIZE, device=device, **options), 1, chain(4)) for _ in range(3)]
    with pytest.raises(UnusableLogits, match="entries \\[1\\]") as caught:
        verify_rows(logits, work)
    assert caught.value.entries == (1,)
    assert isinstance(caught.value, InternalError)
    rest = verify_rows(torch.cat((logits[:2], logits[4:])), [work[0], work[2]])
    assert [len(verdict.next_tokens) for verdict in rest] == [2, 2]


def test_no_possible_token_is_an_error_and_not_a_guess():
    state = open_state(3, stop_token_ids=(0, 1, 2), min_tokens=5)
    with pytest.raises(UnusableLogits):
        verify_one(state, torch.zeros(1, 3))


def test_nothing_to_verify():
    assert verify_rows(torch.empty(0, WIDTH), []) == []


def test_a_bad_proposal_never_reaches_the_batch():
    with pytest.raises(InvalidArgument):
        VerifyRows(open_state(SIZE), 1, chain(SIZE))


@on_each_device
@pytest.mark.parametrize("rule", Rule)
def test_large_vocabularies_equal_the_oracle(rule, device):
    """A real vocabulary's width: thresholds against the oracle's, and draws that are possible."""
    size = 49_152
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(4)) * 3
    likeliest = logits[0].topk(6).indices.tolist()
    q = [1.0 / 6 if token in likeliest else 0.0 for token in range(size)]
    state = open_state(size, rule=rule, temperature=0.7, device=device)
    sent = () if rule is Rule.MATCH else (sparse(q),) * 2
    proposal = chain(likeliest[0], likeliest[3], q=sent)
    verdict = verify_one(state, logits.to(device), proposal)
    p = [oracle.target_distribution(row.tolist(), state.params, prompt=(0,), output=()) for row in logits]
    wanted, _ = oracle.JUDGES[rule](proposal.tree, p, [q, q])
    assert verdict.thresholds == pytest.approx(tuple(map(float, wanted)), abs=1e-5)
    assert all(row[token] > 0 for row, token in zip(p, verdict.next_tokens, strict=True))


@on_each_device
@pytest.mark.parametrize("options", [{}, {"temperature": 0.3}, {"top_k": 20}, {"top_p": 0.8}])
def test_pruned_noise_draws_what_full_noise_draws(device, options):
    """On a CPU noise is made for tokens that can win only; the draws are those of the whole vocabulary's noise."""
    states = [open_state(5000, seed=seed, device=device, **options) for seed in range(64)]
    rows = [Row(state, 1, ()) for state in states]
    logits = torch.randn(64, 5000, generator=torch.Generator().manual_seed(6)).to(device) * 8
    scores = scores_of(logits, rows)
    keys = noise_keys(((state.seed, 1, 0, Domain.MATCH) for state in states), device)
    assert torch.equal(draw(scores, keys), (scores + gumbel_of_all(keys, 5000)).argmax(1))
