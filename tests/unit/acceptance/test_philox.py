"""The generator against its authors' published vectors, and what its counters keep apart."""

from __future__ import annotations

import itertools
import random

import pytest
from scipy import stats

from outrider.acceptance.philox import Domain, philox4x32, uniform

ALL = 0xFFFFFFFF

KNOWN_ANSWERS = [  # Random123, kat_vectors, philox4x32 with 10 rounds
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL, ALL, ALL, ALL), (ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_known_answers(counter, key, words):
    assert philox4x32(counter, key) == words


def test_a_uniform_is_the_first_word_at_its_counter():
    seed = (0x299F31D0 << 32) | 0xA4093822
    words = philox4x32((3, 20, 17, Domain.ACCEPT), (0xA4093822, 0x299F31D0))
    assert uniform(seed, Domain.ACCEPT, position=20, base_length=17, lane=3) == (words[0] + 0.5) / 2**32


def test_neither_end_of_the_unit_interval_is_reached(monkeypatch):
    for word, value in ((0, 2.0**-33), (ALL, 1 - 2.0**-33)):
        monkeypatch.setattr("outrider.acceptance.philox.philox4x32", lambda *_, word=word: (word,) * 4)
        assert uniform(1, Domain.ACCEPT, 0, 0, 0) == value
        assert 0.0 < value < 1.0


def test_every_part_of_the_counter_and_the_key_matters():
    axes = [(0, 1, 2**32, 2**63), tuple(Domain), (0, 5, 2**31), (0, 5, 2**31), (0, 1, 40000)]
    draws = [uniform(*point) for point in itertools.product(*axes)]
    assert len(set(draws)) == len(draws)


def test_case_09_domains_have_disjoint_counters():
    """No counter of one domain is a counter of another, whatever lane, position and base length are."""
    assert len(set(Domain)) == 4
    assert all(
        0 <= domain <= ALL for domain in Domain
    )  # each fits the counter's word of its own, which nothing else uses


def test_uniforms_are_uniform_along_every_axis():
    generator = random.Random(5)
    for vary in range(4):
        start = [generator.randrange(2**31) for _ in range(4)]
        draws = []
        for step in range(4000):
            seed, position, base, lane = (value + (step if axis == vary else 0) for axis, value in enumerate(start))
            draws.append(uniform(seed, Domain.ACCEPT, position, base, lane))
        assert stats.kstest(draws, "uniform").pvalue > 1e-3
        neighbours = [int(4 * a) * 4 + int(4 * b) for a, b in itertools.pairwise(draws)][::2]
        assert stats.chisquare([neighbours.count(cell) for cell in range(16)]).pvalue > 1e-3
