"""Under match, and under every rule at temperature 0, a drafter cannot change a single token of the answer.

One session at a time over a toy model with a memory: what it says depends on the last three tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.acceptance.accept import accept
from outrider.acceptance.ngram import NgramIndex
from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.sampling.state import SamplingState
from outrider.sampling.verify import VerifyRows, verify_rows
from tests.unit.sampling.devices import CPU, on_each_device
from tests.unit.sampling.sessions import open_state

SIZE, LENGTH, EOS = 9, 24, 0
PROMPT = (4, 5, 6, 4)

Propose = Callable[[Sequence[int]], Proposal]


def model_logits(context: Sequence[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash(tuple(context[-3:])) % 2**31)
    return torch.randn(SIZE, generator=generator) * 2


def generate(state: SamplingState, propose: Propose, device: torch.device = CPU) -> tuple[list[int], int]:
    """The first `LENGTH` output tokens and the number of rounds that they took."""
    history, rounds = list(PROMPT), 0
    while len(history) < len(PROMPT) + LENGTH:
        proposal = propose(history)
        tree = proposal.tree
        paths = [[tree.tokens[above] for above in tree.path(node)] for node in range(ROOT, len(tree))]
        logits = torch.stack([model_logits([*history, *path]) for path in paths]).to(device)
        (verdict,) = verify_rows(logits, [VerifyRows(state, len(history), proposal)])
        outcome = accept(state.rule, proposal, verdict, seed=state.seed, base_length=len(history))
        tokens = outcome.tokens(tree)
        state.advance(len(history), tokens)
        history.extend(tokens)
        rounds += 1
    return history[len(PROMPT) : len(PROMPT) + LENGTH], rounds


def plain(history: Sequence[int]) -> Proposal:
    return NO_PROPOSAL


def ngrams(history: Sequence[int]) -> Proposal:
    return NgramIndex(history, min_n=1).propose(5)


def random_trees(seed: int) -> Propose:
    generator = random.Random(seed)

    def propose(history: Sequence[int]) -> Proposal:
        size = generator.randrange(8)
        parents = tuple(generator.randrange(ROOT, node) for node in range(size))
        return Proposal(TokenTree(tuple(generator.randrange(SIZE) for _ in range(size)), parents), Source.MODEL)

    return propose


def oracle_chains(answer: Sequence[int], wrong_every: int) -> Propose:
    """Proposes what will be said, with a mistake now and then, so that long paths are accepted."""

    def propose(history: Sequence[int]) -> Proposal:
        start = len(history) - len(PROMPT)
        guess = [
            (token + (position % wrong_every == 0)) % SIZE
            for position, token in enumerate(answer[start : start + 6], start)
        ]
        return Proposal(TokenTree.chain(guess), Source.MODEL)

    return propose


OPTIONS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.8},
    {"top_k": 3},
    {"min_p": 0.1},
    {"frequency_penalty": 0.8, "temperature": 0.5},
    {"presence_penalty": -1.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": 1.2},
    {"min_tokens": 20, "logit_bias": ((EOS, 6.0),)},
]


@on_each_device
@pytest.mark.parametrize("options", OPTIONS)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**64 - 1))
def test_the_answer_is_the_same_whoever_guesses(device, options, seed):
    def session() -> SamplingState:
        return open_state(SIZE, prompt=PROMPT, seed=seed, stop_token_ids=(EOS,), device=device, **options)

    answer, rounds = generate(session(), plain, device)
    assert rounds == LENGTH
    for propose in (ngrams, random_trees(seed), oracle_chains(answer, 5), oracle_chains(answer, 1000)):
        assert generate(session(), propose, device)[0] == answer
    assert generate(session(), oracle_chains(answer, 1000), device)[1] < LENGTH / 3


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_greedy_answers_are_the_same_under_every_rule(rule, penalty):
    def session(under: Rule, seed: int) -> SamplingState:
        return open_state(SIZE, prompt=PROMPT, rule=under, seed=seed, temperature=0.0, frequency_penalty=penalty)

    answer, _ = generate(session(Rule.MATCH, 1), plain)
    for propose in (plain, ngrams, oracle_chains(answer, 4)):
        assert generate(session(rule, 2), propose)[0] == answer


def test_case_10_penalties_change_the_text_and_speculation_does_not():
    """Greedy, in a context that invites repetition: -2, 0 and +2 differ, each equal to plain decoding."""
    answers = {}
    for penalty in (-2.0, 0.0, 2.0):
        states = [open_state(SIZE, prompt=PROMPT, temperature=0.0, frequency_penalty=penalty) for _ in range(2)]
        answers[penalty] = generate(states[0], plain)[0]
        assert generate(states[1], ngrams)[0] == answers[penalty]
    assert len({tuple(answer) for answer in answers.values()}) == 3
    most = [max(map(answer.count, range(SIZE))) for answer in answers.values()]
    assert most == sorted(most, reverse=True)


def test_case_11_eos_proposed_at_output_positions_8_and_11():
    """min_tokens = 10: the first is rejected, the second may stand; tokens are counted, not rounds."""

    def session() -> SamplingState:
        return open_state(
            SIZE, prompt=PROMPT, temperature=0.0, min_tokens=10, stop_token_ids=(EOS,), logit_bias=((EOS, 100.0),)
        )

    def eager(history: Sequence[int]) -> Proposal:
        """Guesses the truth, but EOS wherever the output position is 8 or 11."""
        start = len(history) - len(PROMPT)
        guess = [EOS if at in (8, 11) else answer[at] for at in range(start, min(start + 4, LENGTH))]
        return Proposal(TokenTree.chain(guess), Source.MODEL)

    answer, _ = generate(session(), plain)
    assert answer[10:] == [EOS] * (LENGTH - 10)
    assert EOS not in answer[:10]
    assert generate(session(), eager)[0] == answer
