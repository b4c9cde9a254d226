"""Waits between probes: by cost, doubling, and over as soon as they bring something."""

from __future__ import annotations

import pytest

from outrider.acceptance.probes import LONGEST, RESTED, SERIES, SHORTEST, Probes


def wait(probes: Probes, lost: float) -> int:
    """Committed tokens, one by one, until a probe is due."""
    tokens = 0
    while not probes.due(lost):
        probes.advance(1, None)
        tokens += 1
    return tokens


def probe(probes: Probes, accepted: int) -> None:
    probes.begin()
    probes.advance(accepted + 1, accepted)


@pytest.mark.parametrize(("lost", "tokens"), [(0.0, SHORTEST), (0.05, SHORTEST), (0.35, 35), (9.0, LONGEST)])
def test_a_dear_probe_waits_longer(lost: float, tokens: int) -> None:
    assert wait(Probes(), lost) == tokens


def test_failures_double_the_wait_up_to_a_cap() -> None:
    probes, waits = Probes(), []
    for _ in range(6):
        waits.append(wait(probes, 0.1))
        probe(probes, 0)
    assert waits == [10, 20, 40, 80, LONGEST, LONGEST]


def test_a_probe_that_stands_is_followed_by_the_next_at_once_but_not_for_ever() -> None:
    probes = Probes()
    wait(probes, 0.1)
    for number in range(SERIES):
        assert probes.due(0.1)
        assert probes.begin() == (number == 0)
        probes.advance(2, 1)
        assert probes.stood == (number + 1) % SERIES
    assert wait(probes, 0.1) == 20


def test_a_source_that_is_back_starts_anew() -> None:
    probes = Probes()
    for _ in range(4):
        wait(probes, 0.1)
        probe(probes, 0)
    probes.advance(4, 3)
    assert wait(probes, 0.1) == 10


def test_a_probe_that_had_nothing_to_propose_is_a_failure_too() -> None:
    probes = Probes()
    wait(probes, 0.1)
    probes.begin()
    probes.advance(1, None)
    assert probes.stood == 0
    assert wait(probes, 0.1) == 9  # 20 since it last proposed, which was before the 10 and the 1


def test_after_a_fallback_it_rests() -> None:
    probes = Probes()
    probes.rest()
    assert wait(probes, 0.1) == min(LONGEST, 10 * 2**RESTED)
