"""From the fused projection to rotated queries and to keys and values in the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.fused.launch import let_next_start, overlap_options, wait
from outrider.engine.kv import LayerKv

MANY_ROWS = 16
"""Up to so many rows, a program takes few heads, so that it is soon done."""


@triton.jit
def _rotate_and_store(
    parts,  # [PARTS, T, (HEADS + 2 * KV_HEADS) * SIZE]
    bias,  # [(HEADS + 2 * KV_HEADS) * SIZE]
    query_weight,  # [SIZE]
    key_weight,  # [SIZE]
    cosines,  # [positions, HALF] float32
    sines,
    positions,  # [T] int32
    slots,  # [T] int32
    query,  # [T, HEADS, SIZE]
    keys,  # [slots, KV_HEADS, SIZE]
    values,
    part_stride,
    epsilon,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    size: tl.constexpr,
    padded_half: tl.constexpr,
    heads_each: tl.constexpr,
    part_count: tl.constexpr,
    has_bias: tl.constexpr,
    has_norm: tl.constexpr,
    overlap: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * heads_each + tl.arange(0, heads_each))[:, None]
    half: tl.constexpr = size // 2
    column = tl.arange(0, padded_half)[None, :]
    inside = (column < half) & (head < heads + 2 * kv_heads)
    kind = query.dtype.element_ty
    is_query, is_value = head < heads, head >= heads + kv_heads
    let_next_start(overlap)
    position = tl.load(positions + row).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    cosine = tl.load(cosines + position * half + column, mask=column < half, other=0.0)
    sine = tl.load(sines + position * half + column, mask=column < half, other=0.0)
    wait(overlap)
    first = tl.zeros((heads_each, padded_half), tl.float32)
    second = tl.zeros((heads_each, padded_half), tl.float32)
    source = row * (heads + 2 * kv_heads) * size + head * size + column
    for part in tl.static_range(part_count):
        first += tl.load(parts + part * part_stride + source, mask=inside, other=0.0).to(tl.float32)
        second += tl.load(parts + part * part_stride + source + half, mask=inside, other=0.0).to(tl.float32)
    if has_bias:
        first += tl.load(bias + head * size + column, mask=inside, other=0.0).to(tl.float32)
        second += tl.load(bias + head * size + half + column, mask=inside, other=0.0).to(tl.float32)
    first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
    plain_first, plain_second = first, second
    if has_norm:
        square = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        length = tl.sqrt(square / size + epsilon)[:, None]
        weight = tl.where(is_query, query_weight + column, key_weight + column)
        scale_first, scale_second = tl.load(weight, mask=inside), tl.load(weight + half, mask=inside)
        first = ((first / length).to(kind).to(tl.float32) * scale_first.to(tl.float32)).to(kind).to(tl.float32)
        second = ((second / length).to(kind).to(tl.float32) * scale_second.to(tl.float32)).to(kind).to(tl.float32)
    # Which multiplications are fused with additions is said, for it decides about the last bit: with few heads a
    # program the compiler may choose otherwise than with many.
    first, second = tl.fma(first, cosine, -(second * sine)), tl.fma(second, cosine, first * sine)
    first, second = tl.where(is_value, plain_first, first).to(kind), tl.where(is_value, plain_second, second).to(kind)
    to_query = query + (row * heads + head) * size + column
    to_key = keys + (slot * kv_heads + head - heads) * size + column
    to_value = values + (slot * kv_heads + head - heads - kv_heads) * size + column
    is_key = (head >= heads) & (head < heads + kv_heads)
    tl.store(to_query, first, mask=inside & is_query)
    tl.store(to_query + half, second, mask=inside & is_query)
    tl.store(to_key, first, mask=inside & is_key)
    tl.store(to_key + half, second, mask=inside & is_key)
    tl.store(to_value, first, mask=inside & is_value)
    tl.store(to_value + half, second, mask=inside & is_value)


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines [positions, size / 2] float32 of rotary position embeddings (Su et al. 2021)."""

    cosines: Tensor
    sines: Tensor

    @classmethod
    def of(cls, rotary: torch.nn.Module, positions: int, device: torch.device) -> RotaryTables:
        """What transformers' module gives for each position, half of it: the other half repeats it."""
        index = torch.arange(positions, device=device)[None]
        cosines, sines = rotary(torch.zeros(1, device=device), position_ids=index)
        half = cosines.shape[-1] // 2
        return cls(cosines[0, :, :half].contiguous(), sines[0, :, :half].contiguous())


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """Root mean square normalisation of each query and key head (Qwen3)."""

    query: Tensor  # [size]
    key: Tensor  # [size]
    epsilon: float


def rotate_and_store(
    parts: Tensor,
    bias: Tensor | None,
    norm: HeadNorm | None,
    tables: RotaryTables,
    positions: Tensor,
    slots: Tensor,
    query: Tensor,
    kv: LayerKv,
) -> None:
    """Split the projection, `parts` [P, T, ...], into heads; rotate queries and keys to their `positions` [T].

    The queries go to `query` [T, heads, size], keys and values to the cache's `slots` [T].
    """
    rows, heads, size = query.shape
    kv_heads = kv.keys.shape[1]
    # A normalisation sums over a head, in an order that may depend on how many heads a program takes: always the same.
    heads_each = 4 if rows <= MANY_ROWS and norm is None else 16
    _rotate_and_store[(rows, triton.cdiv(heads + 2 * kv_heads, heads_each))](
        parts,
        parts if bias is None else bias,
        parts if norm is None else norm.query,
        parts if norm is None else norm.key,
        tables.cosines,
        tables.sines,
        positions,
        slots,
        query,
        kv.keys,
        kv.values,
        parts.stride(0),
        0.0 if norm is None else norm.epsilon,
        heads=heads,
        kv_heads=kv_heads,
        size=size,
        padded_half=triton.next_power_of_2(size // 2),
        heads_each=heads_each,
        part_count=parts.shape[0],
        has_bias=bias is not None,
        has_norm=norm is not None,
        num_warps=heads_each // 4,
        **overlap_options(query.device),
    )
