"""Sessions that a verifier drafts for together: whatever their number, they do what pays, and never much less."""

from __future__ import annotations

import pytest

from outrider.acceptance.consensus import REFRESH, Consensus, with_drafting
from outrider.acceptance.costs import CostTable
from outrider.acceptance.policy import Policy
from tests.unit.acceptance.simulated_step import Card, Played, SharedVerifier, rate_of_length

COUNTS = [2, 4, 16, 64, 128]
CARDS = [Card(), Card(host=0.05, host_row=0.035)]


def warm(card: Card, sessions: int, chance: float, *, told: float = 1.0) -> Played:
    """The second run of a coordinator: what it must learn once it has learned."""
    verifier = SharedVerifier(card, Policy(), told=told)
    verifier.run(sessions, 60, lambda number: chance)
    return verifier.run(sessions, 150, lambda number: chance)


@pytest.mark.parametrize("card", CARDS, ids=["cheap host", "dear host"])
@pytest.mark.parametrize("sessions", COUNTS)
def test_guesses_that_stand_often_bring_nearly_what_the_best_length_would(card: Card, sessions: int) -> None:
    rates = [rate_of_length(card, sessions, 0.8, length) for length in range(6)]
    played = warm(card, sessions, 0.8)
    assert played.rate > 0.88 * max(rates)
    assert played.rate > 0.98 * rates[0]


@pytest.mark.parametrize("card", CARDS, ids=["cheap host", "dear host"])
@pytest.mark.parametrize("sessions", COUNTS)
def test_guesses_that_seldom_stand_cost_next_to_nothing(card: Card, sessions: int) -> None:
    played = warm(card, sessions, 0.2)
    assert played.rate > 0.97 * rate_of_length(card, sessions, 0.2, 0)


@pytest.mark.parametrize("told", [0.5, 2.0])
@pytest.mark.parametrize("sessions", [4, 64])
def test_it_does_not_depend_on_what_the_replica_says_being_right(sessions: int, told: float) -> None:
    assert warm(Card(), sessions, 0.8, told=told).rate > 1.05 * rate_of_length(Card(), sessions, 0.8, 0)
    assert warm(Card(), sessions, 0.2, told=told).rate > 0.95 * rate_of_length(Card(), sessions, 0.2, 0)


def test_they_guess_alike() -> None:
    """Lengths that differ would cost all what the longest costs."""
    played = warm(Card(), 16, 0.8)
    (_, most), *_ = played.lengths.most_common(1)
    assert most > 0.6 * played.lengths.total()


def test_some_whose_guesses_fall_leave_the_others_theirs() -> None:
    verifier = SharedVerifier(Card(), Policy())
    for tokens in (60, 150):
        played = verifier.run(16, tokens, lambda number: 0.9 if number % 4 else 0.1)
    assert played.rate > 1.1 * rate_of_length(Card(), 16, 0.5, 0)


COSTS = CostTable((10.0, 10.5, 11.0, 11.5), (0.0, 1.0, 2.0, 3.0))


def test_how_deep_is_decided_for_all_at_once_and_stands_for_a_while() -> None:
    consensus = Consensus()
    assert consensus.depth(COSTS, (0.9, 0.9, 0.9)) == 3
    for _ in range(REFRESH - 1):
        assert consensus.depth(COSTS, (0.1, 0.1, 0.1)) == 3
    assert consensus.depth(COSTS, (0.1, 0.1, 0.1)) == 0


def test_no_guess_is_deeper_than_a_session_may_have() -> None:
    consensus = Consensus()
    assert consensus.depth(COSTS, (0.9, 0.9, 0.9)) == 3
    assert consensus.depth(COSTS, (0.9,)) == 1


def test_who_is_drafted_for_anyway_waits_as_long_without_a_guess() -> None:
    costs = with_drafting(COSTS, 2)
    assert costs.verify_ms == (12.0, 12.5, 13.0, 13.5)
    assert set(costs.draft_ms) == {0.0}
