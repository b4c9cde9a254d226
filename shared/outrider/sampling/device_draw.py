"""Draws of plain rows on a CUDA device in two kernels: temperature, noise and the search for the best token at once.

Plain rows are those that nothing but a temperature shapes, under the rule match. The noise is that of
`outrider.sampling.noise`, bit for bit. Imported only where there is a GPU; Triton is needed here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.acceptance.philox import MASK, MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1
from outrider.sampling.state import SamplingState

LANES = 512
"""Lanes of four tokens that one program looks at."""

KEY_WORDS = 4
"""Words of a row's key: the seed's low and high half, the vocabulary's size, the temperature's bits."""


@triton.jit(do_not_specialize=["plus"])
def _best_of_block(
    logits,  # [R, width]
    keys,  # [KEY_WORDS, R] int32
    positions,  # [R] int32
    plus,  # what is added to them
    found,  # [3, R, blocks] int32: bits of the best noisy score, its token, bits of its score
    width,
    multiplier_0: tl.constexpr,
    multiplier_1: tl.constexpr,
    weyl_0: tl.constexpr,
    weyl_1: tl.constexpr,
    rounds: tl.constexpr,
    lanes: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    rows, blocks = tl.num_programs(0), tl.num_programs(1)
    size = tl.minimum(tl.load(keys + 2 * rows + row), width)
    temperature = tl.load(keys + 3 * rows + row).to(tl.float32, bitcast=True)
    lane = block * lanes + tl.arange(0, lanes)
    c0 = lane.to(tl.uint32)
    c1 = tl.full((lanes,), 0, tl.uint32) + (tl.load(positions + row) + plus).to(tl.uint32)
    c2 = tl.full((lanes,), 0, tl.uint32)
    c3 = tl.full((lanes,), 0, tl.uint32)
    if temperature > 0.0:
        k0 = tl.load(keys + row).to(tl.uint32)
        k1 = tl.load(keys + rows + row).to(tl.uint32)
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
    place = tl.argmax(best, axis=0)
    chosen = tl.arange(0, lanes) == place
    highest = tl.max(best)
    result = tl.sum(tl.where(chosen, score, 0.0))
    bad = tl.sum(unusable) > 0
    highest = tl.where(bad, float("inf"), highest)
    result = tl.where(bad, float("nan"), result)
    at = found + row * blocks + block
    tl.store(at, highest.to(tl.int32, bitcast=True))
    tl.store(at + rows * blocks, tl.sum(tl.where(chosen, token, 0)))
    tl.store(at + 2 * rows * blocks, result.to(tl.int32, bitcast=True))


@triton.jit
def _best_of_row(found, output, output_stride, blocks, padded: tl.constexpr):
    row, rows = tl.program_id(0), tl.num_programs(0)
    block = tl.arange(0, padded)
    inside = block < blocks
    at = found + row * blocks + block
    highest = tl.load(at, mask=inside, other=0).to(tl.float32, bitcast=True)
    highest = tl.where(inside, highest, float("-inf"))
    place = tl.minimum(tl.argmax(highest, axis=0), blocks - 1)  # a row in which nothing can be drawn still gets a token
    token = tl.load(found + (rows + row) * blocks + place)
    score = tl.load(found + (2 * rows + row) * blocks + place)
    tl.store(output + row, token)
    tl.store(output + output_stride + row, score)


class DrawMemory:
    """What the first kernel leaves for the second, for up to so many rows of logits [R, `width`]."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.blocks = triton.cdiv(width, 4 * LANES)
        self.found = torch.empty(3 * rows * self.blocks, dtype=torch.int32, device=device)


def draw_into(output: Tensor, logits: Tensor, keys: Tensor, positions: Tensor, plus: int, memory: DrawMemory) -> None:
    """Draw a token for each row of `logits` [R, W] into `output` [2, R] int32: tokens, then the bits of their scores.

    `keys` [KEY_WORDS, R] are `plain_keys`; the token of row r stands at `positions[r] + plus`. A score is not finite
    where nothing can be drawn. Launches two kernels and nothing else, so it can be part of a CUDA graph.
    """
    rows, width = logits.shape
    _best_of_block[(rows, memory.blocks)](
        logits,
        keys,
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
    )
    _best_of_row[(rows,)](
        memory.found, output, output.stride(0), memory.blocks, padded=triton.next_power_of_2(memory.blocks)
    )


def plain_keys(states: Sequence[SamplingState]) -> np.ndarray:
    """[KEY_WORDS, R] int32 keys of rows of `states`."""
    keys = np.empty((KEY_WORDS, len(states)), np.uint32)
    keys[0] = [state.seed & MASK for state in states]
    keys[1] = [state.seed >> 32 for state in states]
    keys[2] = [state.vocabulary_size for state in states]
    keys[3] = np.array([state.params.temperature for state in states], np.float32).view(np.uint32)
    return keys.view(np.int32)


def draw(logits: Tensor, states: Sequence[SamplingState], positions: Sequence[int]) -> tuple[list[int], list[float]]:
    """The tokens of rows of `logits` [R, W], at `positions` [R], and their scores; waits for the device once."""
    host = np.vstack([plain_keys(states), np.array(positions, np.int32)[None]])
    device = torch.from_numpy(host).pin_memory().to(logits.device, non_blocking=True)
    output = torch.empty(2, len(logits), dtype=torch.int32, device=logits.device)
    memory = DrawMemory(len(logits), logits.shape[1], logits.device)
    draw_into(output, logits.contiguous(), device[:KEY_WORDS], device[KEY_WORDS], 0, memory)
    tokens, scores = output.cpu().numpy()
    return tokens.tolist(), scores.view(np.float32).tolist()
