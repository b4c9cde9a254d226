"""What a verifier tells of the guesses of all, and what coordinators make of it."""

from __future__ import annotations

import statistics

import pytest

from outrider.acceptance.consensus import Consensus
from outrider.acceptance.estimate import AcceptanceEstimate, AcceptancePool
from outrider.acceptance.policy import Policy
from outrider.acceptance.round import Round
from outrider.acceptance.tally import NO_TALLY, PLACES, Tally, Tallying
from tests.benchmarks.simulated.card import MEASURED
from tests.unit.acceptance.simulated_step import SharedVerifier, rate_of_length


def test_tokens_after_the_first_that_fell_were_not_tried() -> None:
    tallying = Tallying()
    for length, accepted in ((3, 3), (3, 0), (2, 1), (0, 0)):
        tallying.add(length, accepted)
    assert tallying.take() == Tally((3, 2, 1), (2, 1, 1))
    assert tallying.take() == NO_TALLY


def test_what_was_told_is_not_changed_by_what_comes_later() -> None:
    tallying = Tallying()
    tallying.add(2, 2)
    told = tallying.take()
    tallying.add(1, 0)
    assert told == Tally((1, 1), (1, 1))
    assert tallying.take() == Tally((1,), (0,))


def test_it_has_an_end() -> None:
    tallying = Tallying()
    tallying.add(200, 150)
    assert tallying.take() == Tally((1,) * PLACES, (1,) * PLACES)


def test_hearing_of_tokens_is_worth_as_much_as_seeing_them() -> None:
    seen, heard = AcceptancePool((0.7, 0.7)), AcceptancePool((0.7, 0.7))
    for _ in range(60):
        seen.record(0, 1.0)
        seen.record(0, 0.0)
        seen.record(1, 1.0)
        heard.hear(Tally((4, 2), (2, 2)), 0.5)
    assert heard.known == pytest.approx(seen.known)
    assert heard.chances == pytest.approx(seen.chances, abs=0.01)
    heard.hear(Tally((1,) * PLACES, (0,) * PLACES), 1.0)  # deeper than any level of its own: the last one's
    assert len(heard.chances) == 2


def saw(consensus: Consensus, sessions: int, tally: Tally) -> None:
    consensus.saw(Round(0, 0, 1, None, 5.0, rows=sessions, sessions=sessions, drafted=0, tally=tally))


def test_each_of_our_sessions_hears_its_part_of_what_others_did() -> None:
    """Four of eight sessions are ours, and have told of themselves what they saw: half of each tally is news, once."""
    pool = AcceptancePool((0.7,))
    consensus = Consensus(pool)
    for _ in range(4):
        consensus.join(AcceptanceEstimate(pool))
    for _ in range(4):
        saw(consensus, 8, Tally((40,), (40,)))
    expected = AcceptancePool((0.7,))
    expected.hear(Tally((20,), (20,)), 1.0)
    assert pool.known == pytest.approx(expected.known, rel=0.05)


def test_nothing_is_heard_where_all_sessions_are_ours() -> None:
    pool = AcceptancePool((0.7,))
    consensus = Consensus(pool)
    consensus.join(AcceptanceEstimate(pool))
    saw(consensus, 1, Tally((40,), (40,)))
    assert pool.known == 0.0


def test_coordinators_with_a_session_each_learn_from_all() -> None:
    """Guesses that seldom stand, as in `docs/gpu.md`: who has to learn it by itself guesses while the others do not."""
    plain = rate_of_length(MEASURED, 4, 0.27, 0)

    verifiers = [SharedVerifier(MEASURED, Policy(), told=0.9, coordinators=4, seed=seed) for seed in range(8)]
    rates = [each.run(4, 100, lambda number: 0.27).rate / plain for each in verifiers]
    assert statistics.mean(rates) > 1.01  # 1.04 with one coordinator, and 0.99 where nobody hears of others
    assert min(rates) > 0.96
