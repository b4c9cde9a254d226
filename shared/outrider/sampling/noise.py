"""Gumbel noise for whole vocabularies: `outrider.acceptance.philox` on tensors, the same integers bit for bit.

Words are 32-bit values in int64 tensors. A 32 x 32-bit product wraps in int64, but its low and its high 32 bits are
right all the same, which is all that Philox needs.

Token t takes word t % 4 of lane t // 4, so the noise of a token does not depend on the vocabulary's size.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from outrider.acceptance.philox import MASK, MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1, Domain

GUMBEL_RANGE = 26.1
"""More than the largest minus the smallest possible noise: -log(-log(u)) for u from 2**-33 to 1 - 2**-33."""


def philox4x32(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
    """Ten rounds over int64 tensors of 32-bit words, which broadcast against each other; four words come back."""
    for _ in range(ROUNDS):
        even, odd = c0 * MULTIPLIER_0, c2 * MULTIPLIER_1
        # The odd words stay unmasked: only their low halves reach the masked even words of the next round.
        c0, c1 = ((odd >> 32) ^ (c1 ^ k0)) & MASK, odd
        c2, c3 = ((even >> 32) ^ (c3 ^ k1)) & MASK, even
        k0, k1 = k0 + WEYL_0, k1 + WEYL_1
    return c0, c1 & MASK, c2, c3 & MASK


def noise_keys(keys: Iterable[tuple[int, int, int, Domain]], device: torch.device) -> Tensor:
    """[R, 5] int64 keys of rows given as (seed, position, base length, domain); MATCH ignores the base length."""
    words = [
        (seed & MASK, seed >> 32, position, 0 if domain is Domain.MATCH else base_length, int(domain))
        for seed, position, base_length, domain in keys
    ]
    return torch.tensor(words, dtype=torch.int64, device=device).reshape(-1, 5)


def gumbel(seeds: Tensor, positions: Tensor, base_lengths: Tensor, domain: Domain, vocabulary_size: int) -> Tensor:
    """[R, V] float32 noise. `seeds` [R] holds the 64 bits of each seed as int64."""
    if domain is Domain.MATCH:
        base_lengths = torch.zeros_like(base_lengths)
    domains = torch.full_like(positions, int(domain))
    keys = torch.stack((seeds & MASK, (seeds >> 32) & MASK, positions, base_lengths, domains), dim=1)
    return gumbel_of_all(keys, vocabulary_size)


def gumbel_of_all(keys: Tensor, vocabulary_size: int) -> Tensor:
    """[R, V] float32 noise of every token under `keys` [R, 5]."""
    lanes = torch.arange((vocabulary_size + 3) // 4, device=keys.device).unsqueeze(0)
    noise = torch.empty(len(keys), lanes.shape[1], 4, dtype=torch.float32, device=keys.device)
    for place, word in enumerate(_words(lanes, keys)):
        noise[:, :, place] = _gumbel_of_words(word)
    return noise.view(len(keys), -1)[:, :vocabulary_size]


def gumbel_of(keys: Tensor, tokens: Tensor) -> Tensor:
    """[R, N] float32 noise of `tokens` [R, N] alone, under `keys` [R, 5]: the same numbers as `gumbel_of_all` has."""
    words = torch.stack(_words(tokens >> 2, keys), dim=-1)
    return _gumbel_of_words(words.gather(-1, (tokens & 3).unsqueeze(-1)).squeeze(-1)).to(torch.float32)


def _words(lanes: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
    seed_low, seed_high, position, base_length, domain = keys.unsqueeze(-1).unbind(1)
    return philox4x32(lanes, position, base_length, domain, seed_low, seed_high)


def _gumbel_of_words(words: Tensor) -> Tensor:
    # Logarithms in float64, then rounded, so that CPU and CUDA agree.
    uniform = words.to(torch.float64).add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()
