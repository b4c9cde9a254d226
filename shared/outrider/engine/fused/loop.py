"""Steps of drafting without a word from the host: each step's draw is the next one's input, on the device.

One CUDA graph holds a step: the way from the last draw to the pass's integers, the pass, and the draw. It is launched
as often as tokens are wanted, and waited for once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.fused.borders import BLOCK, LONG_SPLIT, SHORT_SPLITS
from outrider.engine.fused.plan import Plan
from outrider.engine.runner import Chains
from outrider.sampling.device_draw import KEY_WORDS, NOTHING, DrawMemory, draw_into, plain_keys
from outrider.sampling.plain import MOST_BESIDE
from outrider.sampling.state import SamplingState

MOST_SESSIONS = 256
"""Sessions that one step may have."""


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


class Draws:
    """What the draws of up to so many sessions need on the device, at fixed addresses."""

    def __init__(self, sessions: int, width: int, device: torch.device) -> None:
        self._keys = torch.zeros(KEY_WORDS * sessions, dtype=torch.int32, device=device)
        self._drawn = torch.zeros(2 + MOST_BESIDE, sessions, dtype=torch.int32, device=device)
        self.memory = DrawMemory(sessions, width, device)

    def keys(self, sessions: int) -> Tensor:
        """[KEY_WORDS, sessions]"""
        return self._keys[: KEY_WORDS * sessions].view(KEY_WORDS, sessions)

    def drawn(self, sessions: int) -> Tensor:
        """[2 + MOST_BESIDE, sessions] the last draw: tokens, the bits of their scores, what stands beside them."""
        return self._drawn[:, :sessions]

    def set_keys(self, states: Sequence[SamplingState], sessions: int) -> None:
        """The keys of `states`; the rest of `sessions` draw what nobody looks at."""
        keys = np.zeros((KEY_WORDS, sessions), np.int32)
        keys[:, : len(states)] = plain_keys(states)
        self.keys(sessions).copy_(torch.from_numpy(keys))


def collected(drawn: Sequence[Tensor], sessions: int) -> Chains:
    """Wait for the device; `drawn` are [2 + MOST_BESIDE, S'] each, of which `sessions` count."""
    host = torch.stack(list(drawn))[:, :, :sessions].contiguous().cpu().numpy()
    beside = host[:, 2:].transpose(0, 2, 1).tolist()
    return Chains(
        host[:, 0].tolist(),
        host[:, 1].view(np.float32).tolist(),
        [[tuple(token for token in tokens if token != NOTHING) for tokens in step] for step in beside],
    )


def first_draw(logits: Tensor, plus: Tensor, draws: Draws, sessions: int) -> None:
    """Draw from `logits` [S, W] at `plus` [S] positions into `draws`; rows up to `sessions` stay as they are."""
    drawn = torch.empty(2 + MOST_BESIDE, len(logits), dtype=torch.int32, device=logits.device)
    keys = draws.keys(sessions)[:, : len(logits)].contiguous()
    draw_into(drawn, logits, keys, plus, 0, draws.memory)
    draws.drawn(sessions)[:, : len(logits)] = drawn
