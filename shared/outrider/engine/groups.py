"""Attention of many sessions in one call: those with equally many rows, over their own block tables.

One call a session and layer is what a large batch would spend its time on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from outrider.engine.batch import Span
from outrider.engine.kv import LayerKv


@dataclass(frozen=True, slots=True)
class Group:
    """S sessions with R rows each, and the blocks that hold their contexts, L slots wide with padding."""

    rows: Tensor  # int64 [S, R] the batch's rows
    blocks: Tensor  # int64 [S, L / block_size]; padded with the session's own first block
    mask: Tensor  # bool [S, 1, heads of a key * R, L] which slots each row sees
    block_size: int

    @classmethod
    def of(cls, spans: Sequence[Span], shared_by: int) -> Group:
        """Group spans of equal length; each key is shared by so many heads."""
        device = spans[0].device
        size = spans[0].feed.sequence.block_size
        tables = [span.feed.sequence.blocks[: -(-(span.base + len(span.feed)) // size)] for span in spans]
        width = max(map(len, tables))
        padded = [[*table, *[table[0]] * (width - len(table))] for table in tables]
        rows = [list(range(span.start, span.stop)) for span in spans]
        return cls(
            rows=torch.tensor(rows, device=device),
            blocks=torch.tensor(padded, device=device),
            mask=_mask(spans, width * size).repeat(1, 1, shared_by, 1),
            block_size=size,
        )

    def attend(self, kv: LayerKv, query: Tensor, scaling: float) -> Tensor:
        """The rows' attention [S * R, heads, value_size], for query [heads, T, key_size] of the whole batch."""
        sessions, count = self.rows.shape
        heads, kv_heads = query.shape[0], kv.keys.shape[1]
        grouped = query[:, self.rows].view(kv_heads, heads // kv_heads, sessions, count, -1)
        # Heads that share a key stand as rows of one head, so that no key is copied for each of them.
        rows = grouped.permute(2, 0, 1, 3, 4).reshape(sessions, kv_heads, heads // kv_heads * count, -1)
        keys, values = (self._gather(memory) for memory in (kv.keys, kv.values))
        attended = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=self.mask, scale=scaling)
        attended = attended.reshape(sessions, heads, count, -1).transpose(1, 2)
        return attended.reshape(sessions * count, heads, -1)

    def _gather(self, memory: Tensor) -> Tensor:
        """[S, kv_heads, L, size] out of [slots, kv_heads, size]."""
        usable = len(memory) // self.block_size * self.block_size
        blocks = memory[:usable].view(-1, self.block_size, *memory.shape[1:])
        found = blocks.index_select(0, self.blocks.flatten())
        return found.view(len(self.blocks), -1, *memory.shape[1:]).transpose(1, 2)


def _mask(spans: Sequence[Span], length: int) -> Tensor:
    device = spans[0].device
    first = torch.tensor([span.base for span in spans], device=device)
    index = first[:, None] + torch.arange(len(spans[0].feed), device=device)  # [S, R] of each row in its cache
    mask = torch.arange(length, device=device) <= index[:, :, None]
    for entry, span in enumerate(spans):
        if not span.feed.tree.is_chain:
            stop = span.base + len(span.feed)
            mask[entry, len(span.feed.tokens) :, span.tree_base : stop] = span.ancestors()
    return mask[:, None]
