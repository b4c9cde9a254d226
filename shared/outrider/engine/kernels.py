"""Attention of one session's rows over its keys and values, in two ways: for a few rows, and for a long chunk.

On a CPU the first sums every row in the same order, whatever other rows the pass has and however long the context
is: `MIN_ROWS` keeps the matrix product from turning into a matrix-vector one, `CONTEXT_STEP` keeps the library from
cutting the context at another place. So a proposed token gets the logits it would have got alone, to the last bit.
tests/unit/engine/test_row_independence.py says where that was seen to hold.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from outrider.engine.batch import Context

MAX_ROWS = 64
"""Up to so many rows of a session are attended to row by row alike; more are a chunk."""

MIN_ROWS = 4
"""Fewest rows, counting those of all heads that share a key, of the matrix products."""

CONTEXT_STEP = 192
"""The number of keys is rounded up to a multiple of this: the length at which MKL's float32 product cuts a sum."""


def attend_chunk(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, *, causal: bool = False
) -> Tensor:
    """Attention of query [heads, rows, size] over keys and values [kv_heads, L, size]: [heads, rows, value_size].

    `mask` is bool [rows, L]. Without one every row sees every key, or if `causal` row i the keys up to i.
    """
    if mask is not None and query.is_cuda:
        # With a mask, the fused kernels want as many key heads as query heads; the one that does not holds all scores.
        groups = query.shape[0] // keys.shape[0]
        keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
    return functional.scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=True
    )[0]


def make_bias(context: Context, rows: int, groups: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What `attend_rows` adds to the scores, [groups * padded rows, L]: 0 where a row sees a key, else -inf."""
    length = context.slots.stop - context.slots.start if isinstance(context.slots, slice) else len(context.slots)
    bias = torch.zeros((max(rows, -(-MIN_ROWS // groups)), length), dtype=dtype, device=device)
    if context.mask is not None:
        bias[:rows].masked_fill_(~context.mask, -torch.inf)
    return bias.repeat(groups, 1)


def attend_rows(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The same as `attend_chunk`, with `bias` from `make_bias` in the place of the mask.

    `softcap` bounds the scores by tanh (Gemma 2); `sinks` [heads] are scores that take part in the softmax and have
    no value (GPT-OSS).
    """
    heads, rows, size = query.shape
    groups = heads // keys.shape[0]
    padded = bias.shape[0] // groups
    if padded > rows:
        query = torch.cat([query, query[:, :1].expand(-1, padded - rows, -1)], dim=1)
    query = query.reshape(-1, groups * padded, size)
    if softcap is None:
        scores = torch.baddbmm(bias, query, keys.transpose(1, 2), alpha=scaling)
    else:
        scores = torch.tanh(torch.bmm(query, keys.transpose(1, 2)) * (scaling / softcap)) * softcap + bias
    weights = _softmax(scores, None if sinks is None else sinks.view(-1, groups, 1).expand(-1, -1, padded))
    return torch.bmm(weights.to(values.dtype), values).view(heads, padded, -1)[:, :rows]


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax in float32 of scores [kv_heads, groups * rows, L]; sinks [kv_heads, groups, rows]."""
    scores = scores.float()
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.reshape(*scores.shape[:2], 1).to(scores.dtype)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
