"""Draws of plain rows on a CUDA device in two kernels: temperature, noise and the search for the best token at once.

Plain rows are those that nothing but a temperature shapes, under the rule match. The noise is that of
`outrider.sampling.noise`, bit for bit. Imported only where there is a GPU; Triton is needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.acceptance.philox import MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1
from outrider.sampling.state import SamplingState

LANES = 512
"""Lanes of four tokens that one program looks at."""

GROUPS = 8
"""Groups of lanes in a program; each names its best token. Tokens with neighbouring ids are in different groups and,
eight lanes further, in different programs, because neighbouring ids are often alike: likely, or not, together."""

NOTHING = -1
"""In place of a token that is not there."""

KEY_WORDS = 4
"""Words of a row's key: the seed's low and high half, the vocabulary's size, the temperature's bits."""


@triton.jit(do_not_specialize=["plus", "key_stride"])
def _best_of_block(
    logits,  # [R, width]
    keys,  # [KEY_WORDS, R] int32
    key_stride,
    positions,  # [R] int32
    plus,  # what is added to them
    found,  # [3, R, blocks * groups] int32: bits of the best noisy score, its token, bits of its score
    width,
    multiplier_0: tl.constexpr,
    multiplier_1: tl.constexpr,
    weyl_0: tl.constexpr,
    weyl_1: tl.constexpr,
    rounds: tl.constexpr,
    lanes: tl.constexpr,
    groups: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    rows, blocks = tl.num_programs(0), tl.num_programs(1)
    size = tl.minimum(tl.load(keys + 2 * key_stride + row), width)
    temperature = tl.load(keys + 3 * key_stride + row).to(tl.float32, bitcast=True)
    own_lane = tl.arange(0, lanes)
    lane = (own_lane // groups * blocks + block) * groups + own_lane % groups
    c0 = lane.to(tl.uint32)
    c1 = tl.full((lanes,), 0, tl.uint32) + (tl.load(positions + row) + plus).to(tl.uint32)
    c2 = tl.full((lanes,), 0, tl.uint32)
    c3 = tl.full((lanes,), 0, tl.uint32)
    if temperature > 0.0:
        k0 = tl.load(keys + row).to(tl.uint32)
        k1 = tl.load(keys + key_stride + row).to(tl.uint32)
        for _ in tl.static_range(rounds):
            high_0 = tl.umulhi(c0, tl.full((lanes,), multiplier_0, tl.uint32))
            high_1 = tl.umulhi(c2, tl.full((lanes,), multiplier_1, tl.uint32))
            low_0 = c0 * tl.full((lanes,), multiplier_0, tl.uint32)
            low_1 = c2 * tl.full((lanes,), multiplier_1, tl.uint32)
            c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
            k0 += tl.full((), weyl_0, tl.uint32)
            k1 += tl.full((), weyl_1, tl.uint32)
    best = tl.full((lanes,), float("-inf"), tl.float32)
    token = lane * 4
    score = best
    unusable = tl.full((lanes,), 0, tl.int32)
    for word in tl.static_range(4):
        inside = lane * 4 + word < size
        own = tl.load(logits + row.to(tl.int64) * width + lane * 4 + word, mask=inside, other=float("-inf"))
        own = own.to(tl.float32)
        noisy = own
        if temperature > 0.0:
            own = tl.div_rn(own, tl.zeros_like(own) + temperature)
            drawn = c0 if word == 0 else (c1 if word == 1 else (c2 if word == 2 else c3))
            uniform = (drawn.to(tl.float64) + 0.5) * 2.3283064365386963e-10
            noisy = own + (-tl.log(-tl.log(uniform))).to(tl.float32)
        unusable += (own != own).to(tl.int32)
        better = noisy > best
        best = tl.where(better, noisy, best)
        score = tl.where(better, own, score)
        token = tl.where(better, lane * 4 + word, token)
    best = tl.reshape(best, (lanes // groups, groups))
    place = tl.argmax(best, axis=0)  # of equals the first, whose id is the least
    chosen = tl.arange(0, lanes // groups)[:, None] == place[None, :]
    highest = tl.max(best, axis=0)
    result = tl.sum(tl.where(chosen, tl.reshape(score, (lanes // groups, groups)), 0.0), axis=0)
    token = tl.sum(tl.where(chosen, tl.reshape(token, (lanes // groups, groups)), 0), axis=0)
    bad = tl.sum(unusable) > 0
    highest = tl.where(bad, float("inf"), highest)
    result = tl.where(bad, float("nan"), result)
    at = found + (row * blocks + block) * groups + tl.arange(0, groups)
    tl.store(at, highest.to(tl.int32, bitcast=True))
    tl.store(at + rows * blocks * groups, token)
    tl.store(at + 2 * rows * blocks * groups, result.to(tl.int32, bitcast=True))


@triton.jit(do_not_specialize=["output_stride", "candidates"])  # else it would be compiled anew in mid-service
def _best_of_row(
    found,  # [3, R, candidates]
    output,  # [2 + beside, R] int32
    output_stride,
    candidates,
    padded: tl.constexpr,
    beside: tl.constexpr,
    nothing: tl.constexpr,
):
    row, rows = tl.program_id(0), tl.num_programs(0)
    candidate = tl.arange(0, padded)
    inside = candidate < candidates
    at = found + row * candidates + candidate
    highest = tl.load(at, mask=inside, other=0).to(tl.float32, bitcast=True)
    highest = tl.where(inside, highest, float("-inf"))
    token = tl.load(at + rows * candidates, mask=inside, other=0x7FFFFFFF)
    # Of equals the least id, as the tensors' argmax. A row in which nothing can be drawn still gets a token.
    drawn = tl.min(tl.where(highest == tl.max(highest), token, 0x7FFFFFFF))
    score = tl.load(at + 2 * rows * candidates, mask=inside, other=0)
    tl.store(output + row, drawn)
    tl.store(output + output_stride + row, tl.sum(tl.where(token == drawn, score, 0)))
    last = drawn
    for number in tl.static_range(beside):
        highest = tl.where(token == last, float("-inf"), highest)
        peak = tl.max(highest)
        last = tl.min(tl.where(highest == peak, token, 0x7FFFFFFF))
        tl.store(output + (2 + number) * output_stride + row, tl.where(peak > float("-inf"), last, nothing))


class DrawMemory:
    """What the first kernel leaves for the second, for up to so many rows of logits [R, `width`]."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.blocks = triton.cdiv(width, 4 * LANES)
        self.found = torch.empty(3 * rows * self.blocks * GROUPS, dtype=torch.int32, device=device)


def draw_into(output: Tensor, logits: Tensor, keys: Tensor, positions: Tensor, plus: int, memory: DrawMemory) -> None:
    """Draw a token for each row of `logits` [R, W] into `output` [2 + B, R] int32: tokens, bits of scores, ...

    The other B get the next likeliest tokens, or `NOTHING`: of every group that an id can be in (see `GROUPS`) at
    most one is named, so now and then one is passed over. They are guesses beside the drawn one, never drawn.
    `keys` [KEY_WORDS, R] are `plain_keys`; the token of row r stands at `positions[r] + plus`. A score is not finite
    where nothing can be drawn. Launches two kernels and nothing else, so it can be part of a CUDA graph. Rows of
    `output` and of `keys` may lie apart.
    """
    rows, width = logits.shape
    _best_of_block[(rows, memory.blocks)](
        logits,
        keys,
        keys.stride(0),
        positions,
        plus,
        memory.found,
        width,
        multiplier_0=MULTIPLIER_0,
        multiplier_1=MULTIPLIER_1,
        weyl_0=WEYL_0,
        weyl_1=WEYL_1,
        rounds=ROUNDS,
        lanes=LANES,
        groups=GROUPS,
    )
    candidates = memory.blocks * GROUPS
    _best_of_row[(rows,)](
        memory.found, output, output.stride(0), candidates,
        padded=triton.next_power_of_2(candidates), beside=len(output) - 2, nothing=NOTHING,
    )  # fmt: skip


def plain_keys(states: Sequence[SamplingState]) -> np.ndarray:
    """[KEY_WORDS, R] int32 keys of rows of `states`."""
    return np.array([state.key for state in states], np.uint32).T.copy().view(np.int32)


class DeviceDrawing:
    """See `outrider.sampling.plain.Drawing`: under way once it is made."""

    def __init__(self, logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]) -> None:
        """Draw a token from each row of `logits` [R, W]; `positions[i]` are those of the rows of `states[i]`."""
        given = torch.empty(KEY_WORDS + 1, len(logits), dtype=torch.int32, pin_memory=logits.is_cuda)
        words = given.numpy()
        words[:KEY_WORDS] = plain_keys(states).repeat([len(each) for each in positions], axis=1)
        words[KEY_WORDS] = list(chain.from_iterable(positions))
        device = given.to(logits.device, non_blocking=True)
        output = torch.empty(2, len(logits), dtype=torch.int32, device=logits.device)
        memory = DrawMemory(len(logits), logits.shape[1], logits.device)
        draw_into(output, logits.contiguous(), device[:KEY_WORDS], device[KEY_WORDS], 0, memory)
        self.tokens = output[0]
        self._found = torch.empty(2, len(logits), dtype=torch.int32, pin_memory=logits.is_cuda)
        self._found.copy_(output, non_blocking=True)
        self._given = given  # until it has been copied
        self._arrived = torch.cuda.Event() if logits.is_cuda else None  # else it is an interpreter that computes
        if self._arrived is not None:
            self._arrived.record()

    def collected(self) -> tuple[list[int], list[float]]:
        """See `Drawing`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        tokens, scores = self._found.numpy()
        return tokens.tolist(), scores.view(np.float32).tolist()
