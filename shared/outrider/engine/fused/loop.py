"""Steps of drafting without a word from the host: each step's draw is the next one's input, on the device.

One CUDA graph holds a step: the way from the last draw to the pass's integers, the pass, and the draw. It is launched
as often as tokens are wanted, and waited for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.drawn import Drawn
from outrider.engine.fused.borders import ALIGNED, BLOCK, LONG_SPLIT, SHORT_SPLITS
from outrider.engine.fused.plan import Plan
from outrider.engine.runner import Chains
from outrider.sampling.device_draw import KEY_WORDS, NOTHING, DrawMemory, plain_keys
from outrider.sampling.plain import MOST_BESIDE
from outrider.sampling.state import SamplingState

MOST_SESSIONS = 256
"""Sessions, or rows, that one step may have."""

COMMON_STEPS = 16
"""Steps whose draws come back through memory that is there already."""

LOOK_UP_BLOCK = 256
"""Rows that one program looks up."""


@triton.jit(do_not_specialize=["sessions"])
def _advance(
    drawn,  # [2 + MOST_BESIDE, S] int32; tokens first
    ids,
    positions,
    slots,
    tile_ends,
    row_tables,
    tables,
    sessions,
    padded: tl.constexpr,
    block_size: tl.constexpr,
    block: tl.constexpr,
    short_splits: tl.constexpr,
    long_split: tl.constexpr,
):
    session = tl.arange(0, padded)
    inside = session < sessions
    position = tl.load(positions + session, mask=inside, other=0) + 1
    table = tl.load(row_tables + session, mask=inside, other=0)
    # Rows of no session keep to the spare block, the first of all tables.
    number = tl.load(tables + table + tl.where(table > 0, position // block_size, 0), mask=inside, other=0)
    tl.store(ids + session, tl.load(drawn + session, mask=inside, other=0), mask=inside)
    tl.store(positions + session, position, mask=inside)
    tl.store(slots + session, number * block_size + position % block_size, mask=inside)
    far = position - short_splits * block
    split = tl.where(far < 0, position // block, short_splits + tl.maximum(far, 0) // long_split)
    tl.store(tile_ends + session, split + 1, mask=inside)


def advance(drawn: Tensor, plan: Plan) -> None:
    """Make `plan` the pass over the tokens `drawn[0]`, [S], each at the position after its session's last."""
    _advance[(1,)](
        drawn,
        plan.ids,
        plan.positions,
        plan.slots,
        plan.tile_ends,
        plan.row_tables,
        plan.tables,
        plan.shape.rows,
        padded=MOST_SESSIONS,
        block_size=plan.block_size,
        block=BLOCK,
        short_splits=SHORT_SPLITS,
        long_split=LONG_SPLIT,
    )


@triton.jit(do_not_specialize=["rows", "most"])
def _look_up(
    ids,  # [T] int32
    drawn,  # int32
    rows,
    most,  # the largest id
    block: tl.constexpr,
):
    row = tl.program_id(0) * block + tl.arange(0, block)
    inside = row < rows
    token = tl.load(ids + row, mask=inside, other=0)
    found = tl.load(drawn - 1 - token, mask=inside & (token < 0), other=0)
    # What is drawn where nothing can be is no token: it is found out later, and must do no harm until then.
    tl.store(ids + row, tl.where(token < 0, tl.minimum(tl.maximum(found, 0), most), token), mask=inside)


def look_up(ids: Tensor, drawn: Drawn, vocabulary_size: int) -> None:
    """Put the drawn tokens where `ids` [T] refers to them."""
    _look_up[(triton.cdiv(len(ids), LOOK_UP_BLOCK),)](
        ids, drawn.memory, len(ids), vocabulary_size - 1, block=LOOK_UP_BLOCK
    )


class Draws:
    """What the draws of up to so many rows need on the device, at fixed addresses, and their way to the host and back.

    Whoever sets keys waits for what is drawn with them (`Sent.collected`) before the next keys are set.
    """

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._given = torch.zeros(KEY_WORDS + 1, rows, dtype=torch.int32, device=device)
        self._host_given = torch.zeros(KEY_WORDS + 1, rows, dtype=torch.int32, pin_memory=pinned)
        self._drawn = torch.zeros(2 + MOST_BESIDE, rows, dtype=torch.int32, device=device)
        size = (2 + MOST_BESIDE) * rows
        self._host_found = [
            torch.zeros(steps * size, dtype=torch.int32, pin_memory=pinned) for steps in (COMMON_STEPS, 1)
        ]
        self._arrived: list[torch.cuda.Event | None] = (
            [torch.cuda.Event() for _ in self._host_found] if pinned else [None, None]
        )
        self.memory = DrawMemory(rows, width, device)

    def keys(self, rows: int) -> Tensor:
        """[KEY_WORDS, rows]"""
        return self._given[:KEY_WORDS, :rows]

    def positions(self, rows: int) -> Tensor:
        """[rows] as they were set."""
        return self._given[KEY_WORDS, :rows]

    def drawn(self, rows: int) -> Tensor:
        """[2 + MOST_BESIDE, rows] the last draw: tokens, the bits of their scores, what stands beside them."""
        return self._drawn[:, :rows]

    def set_keys(self, states: Sequence[SamplingState], counts: Sequence[int], positions: Sequence[int] = ()) -> None:
        """The keys of `states`, each for so many rows, and of the rows' tokens the positions where they are known."""
        keys = plain_keys(states).repeat(counts, axis=1)
        host = self._host_given.numpy()
        host[:KEY_WORDS, : keys.shape[1]] = keys
        host[KEY_WORDS, : len(positions)] = positions
        self._given.copy_(self._host_given, non_blocking=True)

    def room(self, steps: int, rows: int) -> Tensor:
        """[steps, 2 + MOST_BESIDE, rows or more] for draws; those of each step begin at an aligned address."""
        return self._drawn.new_empty(steps, 2 + MOST_BESIDE, -(-rows // ALIGNED) * ALIGNED)

    def sent(self, found: Tensor, rows: int, beside: int = MOST_BESIDE, way: int = 0) -> Sent:
        """Begin to bring the draws `found`, which lie in a `room`, to the host; so many `rows` count.

        Of what stands beside a token, the first `beside` are told. There are two ways, for those that travel at a time.
        """
        size, memory, arrived = found.numel(), self._host_found[way], self._arrived[way]
        common = size <= len(memory)
        host = (memory[:size] if common else found.new_empty(size, device="cpu")).view(found.shape)
        host.copy_(found, non_blocking=True)
        if arrived is not None:
            arrived.record()
        return Sent(Drawn(found.view(-1), found.stride(0)), host[:, :, :rows], beside, arrived)


@dataclass(frozen=True, slots=True)
class Sent:
    """Draws on their way to the host: see `outrider.engine.runner.DrawingChains`."""

    drawn: Drawn
    _host: Tensor  # [steps, 2 + MOST_BESIDE, rows] once they have `_arrived`
    _beside: int
    _arrived: torch.cuda.Event | None  # None: an interpreter computes, and has done it

    def collected(self) -> Chains:
        """See `DrawingChains`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers = self._host.numpy()
        tokens = numbers[:, 0].tolist()
        if self._beside == 0:
            ranked: list[list[tuple[int, ...]]] = [[(token,) for token in step] for step in tokens]
        else:
            named = np.delete(numbers[:, : 2 + self._beside], 1, axis=1).transpose(0, 2, 1)
            ranked = [list(map(tuple, step)) for step in named.tolist()]
            if named.min() == NOTHING:
                ranked = [[tuple(token for token in tokens if token != NOTHING) for tokens in step] for step in ranked]
        return Chains(tokens, numbers[:, 1].view(np.float32).tolist(), ranked)
