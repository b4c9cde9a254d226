"""How a draft rates the tokens that the target said: one pass over each answer, by the engine that serves the draft."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.acceptance.philox import Domain
from outrider.acceptance.tree import TokenTree
from outrider.corpus import Answer
from outrider.engine.engine import Engine, Feed
from outrider.sampling.draw import draw
from outrider.sampling.noise import gumbel_of, noise_keys

MOST_RANK = 9
"""Ranks are not told apart beyond this one."""
CANDIDATES = 4096
"""Only so many of the draft's likeliest tokens are counted as rated higher than the target's: noise lifts no others."""
ROWS = 64
"""Positions whose scores are held at a time."""


def fits(engine: Engine, answer: Answer) -> bool:
    """False for an answer that is longer than the draft's context, or has tokens that the draft's model lacks."""
    text = (*answer.prompt, *answer.answer)
    return len(text) <= engine.info.context_length and max(text) < engine.info.vocabulary_size


@torch.inference_mode()
def ranks(engine: Engine, answer: Answer, vocabulary_size: int) -> list[int]:
    """For each of the answer's tokens but the first: how many tokens the draft would sooner say, at most `MOST_RANK`.

    The draft is asked after the very tokens before it and, above temperature 0, with the answer's own noise, so 0 says
    that a guess stands there under `match`. `vocabulary_size` is what target and draft have in common.
    """
    text = [*answer.prompt, *answer.answer]
    first = len(answer.prompt) + 1
    if len(text) <= first:
        return []
    # Opened with the prompt alone: of the answer every row is needed, whatever the prefix cache knows.
    sequence = engine.open(text[: first - 1], len(text), salt="profile")
    try:
        chain = text[len(sequence.cached) : first]
        tree = TokenTree.chain(text[first:-1])
        while (surplus := len(chain) + len(tree) - engine.options.max_batch_tokens) > 0:
            part = chain[: min(surplus, engine.options.max_batch_tokens, len(chain) - 1)]
            engine.forward([Feed(sequence, part, want_logits=False)])
            chain = chain[len(part) :]
        logits = engine.forward([Feed(sequence, chain, tree)])
    finally:
        engine.close(sequence)
    wanted = torch.tensor(text[first:], device=logits.device)
    parts = [
        _ranks(logits[start : start + ROWS, :vocabulary_size], wanted[start : start + ROWS], answer, first + start)
        for start in range(0, len(wanted), ROWS)
    ]
    found: list[int] = torch.cat(parts).tolist()
    return found


def _ranks(logits: Tensor, wanted: Tensor, answer: Answer, position: int) -> Tensor:
    """Ranks [R] of the tokens `wanted` [R] under `logits` [R, V], whose first row decides about `position`."""
    inside = wanted < logits.shape[1]
    token = wanted.where(inside, 0).unsqueeze(1)
    scores = logits.float()
    if answer.temperature == 0.0:
        drawn, own = scores.argmax(dim=1), scores.gather(1, token)
        better = (scores > own).sum(dim=1)
    else:
        scores = scores / answer.temperature
        places = range(position, position + len(scores))
        keys = noise_keys(((answer.seed, place, 0, Domain.MATCH) for place in places), scores.device)
        drawn, own = draw(scores, keys), scores.gather(1, token) + gumbel_of(keys, token)
        likely, tokens = scores.topk(min(CANDIDATES, scores.shape[1]), dim=1, sorted=False)
        better = (likely + gumbel_of(keys, tokens) > own).sum(dim=1)
    # What is drawn decides, also between two tokens of equal score.
    stands = (drawn == wanted) & inside
    missed = better.clamp(1, MOST_RANK).where(inside, MOST_RANK)
    return missed.where(~stands, 0)
