"""Noise on tensors is the plain Python generator, bit for bit."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from outrider.acceptance import philox
from outrider.acceptance.philox import Domain
from outrider.sampling.noise import GUMBEL_RANGE, gumbel, gumbel_of, gumbel_of_all, noise_keys, philox4x32
from tests.unit.sampling.devices import CPU, on_each_device

words = st.integers(0, 2**32 - 1)


@on_each_device
@given(st.lists(st.tuples(words, words, words, words, words, words), min_size=1, max_size=8))
def test_integers_equal_the_plain_generator(device, inputs):
    columns = torch.tensor(inputs, dtype=torch.int64, device=device).unbind(1)
    found = torch.stack(philox4x32(*columns), dim=1).tolist()
    assert found == [list(philox.philox4x32(tuple(row[:4]), tuple(row[4:]))) for row in inputs]


def plain_gumbel(seed: int, position: int, base_length: int, domain: Domain, token: int) -> float:
    counter = (token // 4, position, base_length, domain)
    word = philox.philox4x32(counter, (seed % 2**32, seed >> 32))[token % 4]
    return -math.log(-math.log((word + 0.5) / 2**32))


@on_each_device
@pytest.mark.parametrize("domain", Domain)
def test_gumbel_is_laid_out_by_token_position_base_length_and_seed(device, domain):
    generator = random.Random(domain)
    seeds = [0, 1, 2**63, 2**64 - 1, *(generator.getrandbits(64) for _ in range(4))]
    positions = [generator.randrange(2**31) for _ in seeds]
    bases = [generator.randrange(2**31) for _ in seeds]
    signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in seeds], device=device)
    noise = gumbel(signed, torch.tensor(positions, device=device), torch.tensor(bases, device=device), domain, 11)
    assert noise.dtype is torch.float32
    for row, (seed, position, base) in enumerate(zip(seeds, positions, bases, strict=True)):
        counted_base = 0 if domain is Domain.MATCH else base
        expected = [plain_gumbel(seed, position, counted_base, domain, token) for token in range(11)]
        assert noise[row].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-7)


@on_each_device
def test_noise_of_some_tokens_is_that_of_all(device):
    keys = noise_keys([(7, 3, 2, Domain.MATCH), (2**64 - 5, 9, 4, Domain.DRAFT)], device)
    tokens = torch.tensor([[0, 1, 2, 3, 998], [5, 5, 700, 0, 999]], device=device)
    assert torch.equal(gumbel_of(keys, tokens), gumbel_of_all(keys, 1000).gather(1, tokens))


def test_noise_does_not_depend_on_the_vocabularys_size():
    keys = noise_keys([(7, 3, 2, Domain.RESIDUAL)], CPU)
    assert torch.equal(gumbel_of_all(keys, 1001)[:, :77], gumbel_of_all(keys, 77))


def test_case_09_no_two_draws_share_a_word():
    """Across domains, positions, rounds and tokens of one session every word of the generator is used once."""
    keys = noise_keys(
        [(3, position, base, domain) for domain in Domain for base in (0, 1, 2) for position in range(20)], CPU
    )
    _, *rest = torch.unique(keys, dim=0, return_counts=True)
    assert rest[0].tolist().count(3) == 20  # MATCH ignores the base length
    assert len(rest[0]) == 20 + 3 * 60
    noise = gumbel_of_all(torch.unique(keys, dim=0), 400)
    assert len(torch.unique(noise)) > 0.999 * noise.numel()  # equal words are chance alone


def test_gumbel_is_gumbel():
    keys = noise_keys([(seed, 5, 5, Domain.DRAFT) for seed in range(20)], CPU)
    noise = gumbel_of_all(keys, 5000).flatten().numpy()
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3
    assert noise.max() - noise.min() < GUMBEL_RANGE


def test_the_range_of_the_noise():
    least, most = (-math.log(-math.log(u)) for u in (2.0**-33, 1 - 2.0**-33))
    assert most - least < GUMBEL_RANGE < most - least + 0.1


@on_each_device
def test_devices_agree(device):
    keys = noise_keys([(seed, 17, 3, Domain.MATCH) for seed in range(8)], CPU)
    here, there = gumbel_of_all(keys, 50_000), gumbel_of_all(keys.to(device), 50_000).cpu()
    assert (here != there).float().mean() < 1e-5  # float64 logarithms differ in the last bit now and then
    assert torch.allclose(here, there, rtol=3e-7, atol=1e-7)
