"""Philox4x32-10: random numbers that are a pure function of what they are for.

Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A counter and a key go in, four
32-bit words come out, so every process can compute the same number without a word on the wire, and a round that is
repeated after a failure repeats its draws.

The counter is (lane, position, base length, domain) and the key is the request's seed. `outrider.sampling.noise` is
the same function on tensors.
"""

from __future__ import annotations

from enum import IntEnum

Words = tuple[int, int, int, int]

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9  # added to the key's words after each round: the golden ratio and sqrt(3) - 1
WEYL_1 = 0xBB67AE85
ROUNDS = 10
MASK = 0xFFFFFFFF


class Domain(IntEnum):
    """What a random number is for. One word of the counter, so that no two purposes ever share a number."""

    MATCH = 0  # Gumbel noise shared by target and drafter; keyed by position alone (base length 0)
    DRAFT = 1  # the drafter's own draws from q
    ACCEPT = 2  # the coordinator's acceptance uniforms
    RESIDUAL = 3  # the target's own draws from the residual


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds of Philox on 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        even, odd = MULTIPLIER_0 * c0, MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (odd >> 32) ^ c1 ^ k0, odd & MASK, (even >> 32) ^ c3 ^ k1, even & MASK
        k0, k1 = (k0 + WEYL_0) & MASK, (k1 + WEYL_1) & MASK
    return c0, c1, c2, c3


def uniform(seed: int, domain: Domain, position: int, base_length: int, lane: int) -> float:
    """A number in the open interval (0, 1): the middle of one of 2**32 equal cells, so neither end is ever reached.

    `position` is the absolute index of the token it decides about; `base_length` the committed length of the round.
    """
    words = philox4x32((lane, position, base_length, domain), (seed & MASK, seed >> 32))
    return (words[0] + 0.5) * 2.0**-32
