"""Attention over the paged KV cache, in the place of transformers' own.

Registered under `NAME` with transformers' attention interface, so that any model which goes through that interface
runs on our cache. Models do not all hand extra arguments down to it, so what the pass computes travels beside the
call, as `running`. Outside of `running` the function refuses to work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from outrider.engine.batch import Batch, Slots, Span
from outrider.engine.groups import Group
from outrider.engine.kernels import CONTEXT_STEP, MAX_ROWS, attend_chunk, attend_rows, make_bias
from outrider.engine.kv import KvStore

NAME = "outrider_paged"

GROUPED_DEVICES = {"cuda"}
"""Where sessions share a call: starting one costs more there than the padding does."""


class Attention(Protocol):
    """What computes one layer's attention during a pass."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, extra: Mapping[str, Any]
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


@dataclass(frozen=True, slots=True)
class _Part:
    """One session's part of a pass, for the layers with one kind of attention."""

    rows: slice
    slots: Slots
    causal: bool = False  # these two for `attend_chunk`
    mask: Tensor | None = None
    bias: Tensor | None = None  # for `attend_rows`


class PagedAttention:
    """Writes a pass's keys and values to the cache, then lets every session's rows attend to its own.

    This is the place for other kernels: one `PagedAttention` serves one pass, and sees all its sessions.
    """

    def __init__(self, store: KvStore, batch: Batch) -> None:
        self._store = store
        self._batch = batch
        self._on_cpu = store.device.type == "cpu"
        # The step is for results that are equal to the last bit, which other dtypes do not give anyway; without it,
        # no session ever reads a slot that is not its own.
        self._step = CONTEXT_STEP if self._on_cpu and store.dtype == torch.float32 else 1
        self._parts: dict[tuple[int | None, int, bool], list[_Part]] = {}
        # Sessions that share a call: those with equally few rows, two of them at least.
        self._alike = _alike(batch.spans) if store.device.type in GROUPED_DEVICES else []
        self._groups: dict[int, list[Group]] = {}

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, extra: Mapping[str, Any]
    ) -> Tensor:
        """See `Attention`."""
        kv = self._store.layers[layer]
        kv.write(self._batch.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        window, softcap, sinks = extra.get("sliding_window"), extra.get("softcap"), extra.get("s_aux")
        plain, shared_by = softcap is None and sinks is None, query.shape[1] // key.shape[1]
        parts = self._parts_for(window, shared_by, plain)
        outputs = []
        for part in parts:
            keys, values = kv.read(part.slots)
            rows = query[0, :, part.rows]
            if part.bias is None:
                outputs.append(attend_chunk(rows, keys, values, part.mask, scaling, causal=part.causal))
            else:
                outputs.append(attend_rows(rows, keys, values, part.bias, scaling, softcap, sinks))
        groups = self._groups_for(shared_by) if self._in_groups(window, plain) else []
        if not groups:
            return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)).transpose(0, 1)[None]
        result = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
        for part, output in zip(parts, outputs, strict=True):
            result[part.rows] = output.transpose(0, 1)
        for group in groups:
            result[group.rows.flatten()] = group.attend(kv, query[0], scaling)
        return result[None]

    def _in_groups(self, window: int | None, plain: bool) -> bool:
        return bool(self._alike) and plain and window is None

    def _groups_for(self, shared_by: int) -> list[Group]:
        if shared_by not in self._groups:
            self._groups[shared_by] = [Group.of(spans, shared_by) for spans in self._alike]
        return self._groups[shared_by]

    def _parts_for(self, window: int | None, groups: int, plain: bool) -> list[_Part]:
        """The parts that stand alone: all of them, or those in no group."""
        kind = (window, groups, plain)
        if kind not in self._parts:
            spans = self._alike if self._in_groups(window, plain) else []
            shared = {span.start for alike in spans for span in alike}
            alone = [span for span in self._batch.spans if span.start not in shared]
            self._parts[kind] = [self._part(span, window, groups, plain) for span in alone]
        return self._parts[kind]

    def _part(self, span: Span, window: int | None, groups: int, plain: bool) -> _Part:
        rows = slice(span.start, span.stop)
        if plain and (not self._on_cpu or len(span.feed) > MAX_ROWS):
            causal = span.is_prefix(window)
            context = span.context(window, self._step, masked=not causal)
            return _Part(rows, context.slots, causal, context.mask)
        context = span.context(window, self._step)
        bias = make_bias(context, len(span.feed), groups, self._store.dtype, self._store.device)
        return _Part(rows, context.slots, bias=bias)


def _alike(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans that have as many rows as another one, by that number."""
    found: dict[int, list[Span]] = {}
    for span in spans:
        if len(span.feed) <= MAX_ROWS:
            found.setdefault(len(span.feed), []).append(span)
    return [group for group in found.values() if len(group) > 1]


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
    layer: int = module.layer_idx  # type: ignore[assignment]
    return _running.get()(layer, query, key, value, scale, extra), None


AttentionInterface.register(NAME, _attention_forward)
