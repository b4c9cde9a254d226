"""Attention over the paged KV cache, in the place of transformers' own.

Registered under `NAME` with transformers' attention interface, so that any model which goes through that interface
runs on our cache. Models do not all hand extra arguments down to it, so what the pass computes travels beside the
call, as `running`. Outside of `running` the function refuses to work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from outrider.engine.batch import Batch, Context
from outrider.engine.kv import KvStore

NAME = "outrider_paged"


class Attention(Protocol):
    """What computes one layer's attention during a pass."""

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float, extra: dict[str, Any]
    ) -> Tensor:
        """Attend; returns [1, T, heads, value_size].

        query [1, heads, T, key_size], key [1, kv_heads, T, key_size], value [1, kv_heads, T, value_size]; `extra`
        holds the other arguments that the model gave, such as `sliding_window`.
        """
        ...


_running: ContextVar[Attention] = ContextVar("outrider_attention")


@contextmanager
def running(attention: Attention) -> Iterator[None]:
    """Let `attention` serve the attention layers within."""
    token = _running.set(attention)
    try:
        yield
    finally:
        _running.reset(token)


class PagedAttention:
    """Writes a pass's keys and values to the cache, then lets every session's rows attend to its own."""

    def __init__(self, store: KvStore, batch: Batch) -> None:
        self._store = store
        self._batch = batch

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float, extra: dict[str, Any]
    ) -> Tensor:
        """See `Attention`."""
        layer = self._store.layers[module]
        layer.write(self._batch.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        outputs = []
        for span in self._batch.spans:
            context = span.context(extra.get("sliding_window"))
            keys = layer.keys[context.slots].transpose(0, 1)
            values = layer.values[context.slots].transpose(0, 1)
            outputs.append(_attend(query[0, :, span.start : span.stop], keys, values, context, scaling, extra))
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)).transpose(0, 1)[None]


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, context: Context, scaling: float, extra: dict[str, Any]
) -> Tensor:
    """Attention of query [heads, rows, size] over keys and values [kv_heads, L, size]: [heads, rows, value_size]."""
    softcap, sinks = extra.get("softcap"), extra.get("s_aux")
    if softcap is None and sinks is None:
        return functional.scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=context.mask, scale=scaling, enable_gqa=True
        )[0]
    groups = query.shape[0] // keys.shape[0]
    scores = query.view(-1, groups, *query.shape[1:]) @ keys[:, None].transpose(-1, -2) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if context.mask is not None:
        scores = scores.masked_fill(~context.mask, -torch.inf)
    weights = _softmax(scores, sinks).to(query.dtype)
    return (weights @ values[:, None]).flatten(0, 1)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax in float32 of scores [kv_heads, groups, rows, L]; `sinks` [heads] take part but get no output."""
    scores = scores.float()
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.float().reshape(*scores.shape[:2], 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _running.get()(module, query, key, value, scale, extra), None


AttentionInterface.register(NAME, _attention_forward)
