"""Short ways to say what a test is about: a session's state, its rows of logits, a proposal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, SparseQ, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.protocol.items import Key, Open
from outrider.sampling.state import SamplingState
from outrider.sampling.verify import VerifyRows, verify_rows
from tests.unit.sampling.devices import CPU


def open_state(
    vocabulary_size: int,
    *,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    rule: Rule = Rule.MATCH,
    seed: int = 1,
    logprobs: int | None = None,
    stop_token_ids: Sequence[int] = (),
    device: torch.device = CPU,
    **params,
) -> SamplingState:
    """A session of `prompt` and `output`; other keywords are sampling parameters."""
    history = (*prompt, *output)
    item = Open(
        key=Key(1, 0, len(history)),
        tokens=history,
        prompt_length=len(prompt),
        max_length=1 << 20,
        params=SamplingParams(**params),
        rule=rule,
        seed=seed,
        logprobs=logprobs,
        stop_token_ids=tuple(stop_token_ids),
    )
    return SamplingState.open(item, vocabulary_size, device)


def logits_of(distributions: Sequence[Sequence[float]], device: torch.device = CPU) -> Tensor:
    """[R, V] float32 logits whose softmax is the given distributions; zeros become -inf."""
    return torch.tensor([[math.log(p) if p > 0 else -math.inf for p in map(float, row)] for row in distributions]).to(
        device
    )


def sparse(distribution: Sequence[float]) -> SparseQ:
    entries = [(token, float(q)) for token, q in enumerate(distribution) if q > 0]
    return SparseQ(tuple(token for token, _ in entries), tuple(q for _, q in entries))


def chain(*tokens: int, q: Sequence[SparseQ] = ()) -> Proposal:
    return Proposal(TokenTree.chain(tokens), Source.MODEL, tuple(q))


def verify_one(state: SamplingState, logits: Tensor, proposal: Proposal = NO_PROPOSAL) -> Verdict:
    """The verdict of a session alone in its batch."""
    (verdict,) = verify_rows(logits, [VerifyRows(state, state.length, proposal)])
    return verdict
