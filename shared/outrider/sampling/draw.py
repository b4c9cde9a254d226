"""Draws from softmax(scores) by the Gumbel-max trick."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.sampling.noise import GUMBEL_RANGE, gumbel_of, gumbel_of_all

CHUNK_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 25}
"""Noise takes about 60 bytes an element while it is made, so it is made for so many elements at a time."""


def draw(scores: Tensor, keys: Tensor) -> Tensor:
    """[R] tokens: argmax(scores + noise of `keys` [R, 5]) over `scores` [R, V] float32.

    A row's draw depends on its own scores and key alone, not on its neighbours.
    """
    limit = CHUNK_ELEMENTS.get(scores.device.type, 1 << 17)
    rows = max(1, limit // scores.shape[1])
    chunks = [_draw_chunk(scores[i : i + rows], keys[i : i + rows]) for i in range(0, len(scores), rows)]
    return torch.cat(chunks) if len(chunks) != 1 else chunks[0]


def _draw_chunk(scores: Tensor, keys: Tensor) -> Tensor:
    survivors = _most_survivors(scores) if scores.device.type == "cpu" else 0
    if 0 < survivors <= scores.shape[1] // 8:
        best, tokens = scores.topk(survivors, dim=-1, sorted=False)
        chosen = (best + gumbel_of(keys, tokens)).argmax(dim=-1, keepdim=True)
        return tokens.gather(1, chosen).squeeze(1)
    return (scores + gumbel_of_all(keys, scores.shape[1])).argmax(dim=-1)


def _most_survivors(scores: Tensor) -> int:
    """How many tokens of a row can win at all: no noise lifts one that is `GUMBEL_RANGE` below the best."""
    best = scores.amax(dim=-1, keepdim=True)
    return int((scores > best - GUMBEL_RANGE).sum(dim=-1).max())
