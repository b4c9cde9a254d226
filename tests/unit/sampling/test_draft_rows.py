"""Drafted tokens: coupled to the target under match, drawn from the very q that travels under the other rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from scipy import stats

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import Proposal
from outrider.sampling.distribution import UnusableLogits
from outrider.sampling.draft import Q_ENTRIES, DraftRow, draft_rows
from outrider.sampling.verify import VerifyRows, verify_rows
from tests.unit.sampling.devices import on_each_device
from tests.unit.sampling.sessions import chain, logits_of, open_state
from tests.unit.sampling.simulation import Pair, Session, chains, random_pair, simulate

SIZE = 100


def some_logits(rows: int, width: int = SIZE, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 2


OPTIONS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.4},
    {"top_p": 0.8},
    {"top_k": 5, "temperature": 2.0},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.2},
    {"min_tokens": 9},
]


@on_each_device
@pytest.mark.parametrize("options", OPTIONS)
def test_equal_models_coupled_by_match_agree_on_every_token(device, options):
    """q = p: the drafter's draw and the target's are the same argmax, at every step of every session."""
    length, sessions = 5, 60
    logits = some_logits(sessions * (length + 1)).view(sessions, length + 1, SIZE).to(device)
    states = [
        open_state(
            SIZE, prompt=(1, 2), output=(3,) * (seed % 4), seed=seed, stop_token_ids=(0,), device=device, **options
        )
        for seed in range(sessions)
    ]
    drafts: list[list[int]] = [[] for _ in states]
    for step in range(length):
        work = [DraftRow(state, state.length, tuple(draft)) for state, draft in zip(states, drafts, strict=True)]
        for draft, drafted in zip(drafts, draft_rows(logits[:, step], work), strict=True):
            assert drafted.q is None
            draft.append(drafted.token)
    entries = [VerifyRows(state, state.length, chain(*draft)) for state, draft in zip(states, drafts, strict=True)]
    for draft, verdict in zip(drafts, verify_rows(logits.flatten(0, 1), entries), strict=True):
        assert list(verdict.next_tokens[:length]) == draft


def test_coupling_accepts_at_least_as_often_as_its_bound():
    """Daliri, Musco & Suresh 2024: two argmaxes with the same noise agree with probability >= (1 - TV) / (1 + TV)."""
    pair = random_pair(8, seed=2)
    p, q = pair.target[0].tolist(), pair.drafter[0].tolist()
    states = [open_state(8, seed=seed) for seed in range(8000)]
    drafted = draft_rows(logits_of([q] * 8000), [DraftRow(state, 1, ()) for state in states])
    verdicts = verify_rows(
        logits_of([p] * 16000),
        [VerifyRows(state, 1, chain(d.token)) for state, d in zip(states, drafted, strict=True)],
    )
    agreed = sum(v.next_tokens[0] == d.token for v, d in zip(verdicts, drafted, strict=True)) / 8000
    distance = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    assert (1 - distance) / (1 + distance) - 0.02 < agreed < 1 - distance + 0.02


@on_each_device
@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_q_is_the_likeliest_tokens_renormalised(rule, device):
    logits = some_logits(2, SIZE + 7).to(device)
    logits[:, SIZE:] = 40.0  # padding, never proposed
    states = [
        open_state(SIZE, rule=rule, temperature=0.9, device=device),
        open_state(SIZE, rule=rule, top_k=3, device=device),
    ]
    wide, narrow = draft_rows(logits, [DraftRow(state, 1, ()) for state in states])
    for drafted, row, temperature, size in ((wide, 0, 0.9, Q_ENTRIES), (narrow, 1, 1.0, 3)):
        top = (logits[row, :SIZE].cpu().double() / temperature).topk(size)
        assert drafted.q is not None
        assert drafted.q.token_ids == tuple(top.indices.tolist())
        assert drafted.q.probabilities == pytest.approx(top.values.softmax(0).tolist(), abs=1e-6)
        assert math.fsum(drafted.q.probabilities) == pytest.approx(1.0, abs=1e-6)
        assert min(drafted.q.probabilities) > 0.0
        assert drafted.token in drafted.q.token_ids
        assert all(struct_float32(q) == q for q in drafted.q.probabilities)  # the wire's own type: nothing is lost


def struct_float32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()


@on_each_device
def test_drafts_are_drawn_from_that_q(device):
    logits = some_logits(1, 6).expand(20_000, 6).to(device)
    states = [open_state(6, rule=Rule.REJECTION, seed=seed, device=device) for seed in range(20_000)]
    drafted = draft_rows(logits, [DraftRow(state, 1, ()) for state in states])
    q = drafted[0].q
    assert q is not None
    assert {d.q for d in drafted} == {q}
    seen = [sum(d.token == token for d in drafted) for token in q.token_ids]
    expected = [20_000 * p / math.fsum(q.probabilities) for p in q.probabilities]
    assert stats.chisquare(seen, expected, sum_check=False).pvalue > 1e-3


@pytest.mark.parametrize("rule", Rule)
def test_greedy_drafts_are_the_likeliest_and_one_hot(rule):
    logits = some_logits(4)
    work = [DraftRow(open_state(SIZE, rule=rule, temperature=0.0, seed=seed), 1, ()) for seed in range(4)]
    assert [(d.token, d.q) for d in draft_rows(logits, work)] == [(t, None) for t in logits.argmax(1).tolist()]


@on_each_device
def test_mixed_batches_equal_each_session_alone(device):
    logits = some_logits(len(OPTIONS) * len(Rule)).to(device)
    work = [
        DraftRow(
            open_state(SIZE, rule=rule, seed=i, output=(4, 4), stop_token_ids=(0,), device=device, **options),
            3,
            (7,) * (i % 3),
        )
        for i, (rule, options) in enumerate((rule, options) for rule in Rule for options in OPTIONS)
    ]
    together = draft_rows(logits, work)
    for i, entry in enumerate(work):
        (alone,) = draft_rows(logits[i : i + 1], [entry])
        assert together[i].token == alone.token
        assert (together[i].q is None) == (alone.q is None)
        if alone.q is not None:
            assert together[i].q.token_ids == alone.q.token_ids
            assert together[i].q.probabilities == pytest.approx(alone.q.probabilities, abs=1e-7)


def test_a_position_drafted_again_in_a_later_round_gets_fresh_noise():
    logits = some_logits(1).expand(200, SIZE)
    tokens = {}
    for rule in (Rule.MATCH, Rule.BLOCK):
        states = [open_state(SIZE, rule=rule, seed=seed) for seed in range(200)]
        early = draft_rows(logits, [DraftRow(state, 5, (1, 1)) for state in states])
        late = draft_rows(logits, [DraftRow(state, 7, ()) for state in states])
        tokens[rule] = [a.token == b.token for a, b in zip(early, late, strict=True)]
    assert all(tokens[Rule.MATCH])
    assert sum(tokens[Rule.BLOCK]) < 100


@on_each_device
@pytest.mark.parametrize("options", [{}, {"rule": Rule.BLOCK}, {"temperature": 0.0}])
def test_unusable_logits_name_their_sessions(device, options):
    logits = some_logits(3).to(device)
    logits[2] = math.nan
    with pytest.raises(UnusableLogits, match="entries \\[2\\]"):
        draft_rows(logits, [DraftRow(open_state(SIZE, device=device, **options), 1, ()) for _ in range(3)])


def test_nothing_to_draft():
    assert draft_rows(torch.empty(0, SIZE), []) == []


@pytest.mark.parametrize("rule", Rule)
def test_case_05_equal_models_accept_every_draft_of_every_round(rule):
    """With q = p, chains of 3 commit 4 tokens a round: 12 tokens take 3 rounds, in every session."""
    pair = random_pair(3)
    rounds: list[int] = []

    def propose(pair: Pair, sessions: Sequence[Session]) -> list[Proposal]:
        rounds.append(len(sessions))
        return chains(3)(pair, sessions)

    simulate(Pair(pair.target, pair.target), rule, propose, sessions=500, tokens=12)
    assert rounds == [500, 500, 500]
