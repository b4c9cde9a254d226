"""Sessions that a verifier drafts for together: whatever their number, they do what pays, and never much less."""

from __future__ import annotations

import pytest

from outrider.acceptance.consensus import WILLING, Consensus, with_drafting
from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import CostTable, RoundCosts
from outrider.acceptance.estimate import AcceptanceEstimate, AcceptancePool
from outrider.acceptance.node_budget import NodeBudget
from outrider.acceptance.policy import Policy
from outrider.acceptance.pools import Pools
from outrider.acceptance.proposal import Source
from outrider.acceptance.round import Round
from tests.benchmarks.simulated.card import MEASURED, Card
from tests.unit.acceptance.simulated_step import SharedVerifier, rate_of_length

CARDS = [Card(host=0.02, host_guess=0.05, opening_ms=0.5), Card(host=0.055, host_guess=0.13, opening_ms=0.5)]
TOLD = [(1.0, 1.0), (0.7, 1.0), (1.5, 1.0), (1.0, 0.7), (1.0, 1.4)]
"""How wrong what the replica says is, see `Card.told`."""


def ratios(
    card: Card, sessions: int, chance: float, told: tuple[float, float], coordinators: int, tokens: int = 100
) -> tuple[float, float]:
    """Tokens in the time of one of plain decoding: of coordinators that know nothing yet, and of those that do."""
    plain = rate_of_length(card, sessions, chance, 0)
    verifier = SharedVerifier(card, Policy(), told=told[0], guessed=told[1], coordinators=coordinators)
    first, second = (verifier.run(sessions, tokens, lambda number: chance) for _ in range(2))
    return first.rate / plain, second.rate / plain


@pytest.mark.parametrize("card", CARDS, ids=["cheap host", "dear host"])
@pytest.mark.parametrize(("sessions", "coordinators"), [(1, 1), (4, 1), (4, 4), (16, 4), (64, 1), (128, 4)])
def test_guesses_that_stand_often_bring_nearly_what_the_best_length_would(
    card: Card, sessions: int, coordinators: int
) -> None:
    best = max(rate_of_length(card, sessions, 0.8, length) for length in range(8))
    _, warm = ratios(card, sessions, 0.8, (1.0, 1.0), coordinators)
    assert warm > 0.85 * best / rate_of_length(card, sessions, 0.8, 0)
    assert warm > 0.98


@pytest.mark.parametrize("card", CARDS, ids=["cheap host", "dear host"])
@pytest.mark.parametrize(("sessions", "coordinators"), [(1, 1), (4, 1), (4, 4), (16, 4), (64, 1), (128, 4)])
def test_guesses_that_seldom_stand_cost_next_to_nothing(card: Card, sessions: int, coordinators: int) -> None:
    cold, warm = ratios(card, sessions, 0.27, (1.0, 1.0), coordinators)
    assert cold > 0.93
    assert warm > 0.95


@pytest.mark.parametrize(("sessions", "near"), [(4, 0.87), (16, 0.87), (64, 0.92), (128, 0.92)])
def test_on_a_card_that_was_measured_four_coordinators_are_near_the_best_length(sessions: int, near: float) -> None:
    """Where few share a step, the fallback's limit keeps guesses short."""
    best = max(rate_of_length(MEASURED, sessions, 0.81, length) for length in range(8))
    _, warm = ratios(MEASURED, sessions, 0.81, (0.9, 1.0), 4)
    assert warm > near * best / rate_of_length(MEASURED, sessions, 0.81, 0)
    assert warm > 1.0
    assert ratios(MEASURED, sessions, 0.27, (0.9, 1.0), 4)[1] > 0.96


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize(("sessions", "coordinators"), [(4, 4), (16, 1)])
def test_it_does_not_depend_on_what_the_replica_says_being_right(
    sessions: int, coordinators: int, told: tuple[float, float]
) -> None:
    assert ratios(CARDS[1], sessions, 0.8, told, coordinators)[1] > 1.3
    assert ratios(CARDS[1], sessions, 0.27, told, coordinators)[1] > 0.9


def test_they_guess_alike() -> None:
    """Lengths that differ would cost all what the longest costs."""
    verifier = SharedVerifier(Card(), Policy())
    verifier.run(16, 60, lambda number: 0.8)
    played = verifier.run(16, 100, lambda number: 0.8)
    (_, most), *_ = played.lengths.most_common(1)
    assert most > 0.6 * played.lengths.total()


def test_some_whose_guesses_fall_leave_the_others_theirs() -> None:
    verifier = SharedVerifier(Card(), Policy())
    for tokens in (60, 150):
        played = verifier.run(16, tokens, lambda number: 0.9 if number % 4 else 0.1)
    assert played.rate > 1.1 * rate_of_length(Card(), 16, 0.5, 0)


COSTS = CostTable((10.0, 10.5, 11.0, 11.5), (0.0, 1.0, 2.0, 3.0))


def joined(consensus: Consensus, sessions: int, *, stood: int) -> AcceptanceEstimate:
    """The last of so many sessions that have seen 30 guesses of one token; `stood`: how many of each 10 stood."""
    estimate = AcceptanceEstimate(AcceptancePool((0.7,)))
    for _ in range(sessions):
        estimate = AcceptanceEstimate(AcceptancePool((0.7, 0.7, 0.7)))
        for place in range(30):
            estimate.record(1, 1, int(place % 10 < stood))
        consensus.join(estimate)
    return estimate


def test_how_deep_is_decided_for_all_at_once_and_stands_until_each_may_have_asked() -> None:
    consensus = Consensus(AcceptancePool((0.7,)))
    one = joined(consensus, 4, stood=10)
    assert consensus.depth(COSTS, 3, one, 4) == 3
    joined(consensus, 40, stood=0)
    assert [consensus.depth(COSTS, 3, one, 4) for _ in range(4)] == [3, 3, 3, 0]


@pytest.mark.parametrize(("good", "depth"), [(1, 0), (12, 3)])
def test_what_is_decided_is_for_the_average_of_all_sessions(good: int, depth: int) -> None:
    consensus = Consensus(AcceptancePool((0.7,)))
    one = joined(consensus, 1, stood=10)
    joined(consensus, good - 1, stood=10)
    joined(consensus, 12, stood=0)
    assert consensus.depth(COSTS, 3, one, 4) == depth


def test_who_guesses_while_others_do_not_gives_up_and_joins_them_once_they_do() -> None:
    consensus = Consensus(AcceptancePool((0.7,)))
    one = joined(consensus, 1, stood=10)
    assert consensus.depth(COSTS, 3, one, 4) == 3
    for _ in range(20):
        consensus.saw(Round(3, 3, 1 + 3, None, None, rows=7, sessions=4, drafted=3))
    assert [consensus.depth(COSTS, 3, one, 4) for _ in range(3)] == [0, 0, 0]
    for _ in range(8):
        consensus.saw(Round(0, 0, 1 + 0, None, None, rows=13, sessions=4, drafted=3))
    assert consensus.depth(COSTS, 3, one, 4) == 3


def test_who_guesses_while_others_do_goes_on() -> None:
    consensus = Consensus(AcceptancePool((0.7,)))
    one = joined(consensus, 1, stood=10)
    for _ in range(60):
        assert consensus.depth(COSTS, 3, one, 4) == 3
        consensus.saw(Round(3, 3, 1 + 3, None, None, rows=16, sessions=4, drafted=3))


def test_of_depths_that_bring_about_as_much_the_shallowest_is_taken() -> None:
    flat = CostTable((10.0, 12.0, 17.6, 23.3), (0.0,) * 4)
    consensus = Consensus(AcceptancePool((0.98,)))
    one = joined(consensus, 1, stood=10)
    chances = one.chances(1, 2)
    assert (1 + chances[0]) / 12.0 < (1 + chances[0] * (1 + chances[1])) / 17.4  # so near are they
    assert consensus.depth(flat, 3, one, 4) == 1


def test_no_guess_is_deeper_than_a_session_may_have() -> None:
    consensus = Consensus(AcceptancePool((0.7,)))
    one = joined(consensus, 2, stood=10)
    assert consensus.depth(COSTS, 3, one, 2) == 3
    assert consensus.depth(COSTS, 1, one, 2) == 1


def test_few_try_what_is_unknown_so_that_not_all_have_to_open_the_draft() -> None:
    pool = AcceptancePool((0.9,))
    consensus = Consensus(pool)
    first, last = joined(consensus, 1, stood=10), joined(consensus, 31, stood=10)
    depths = [consensus.depth(COSTS, 3, each, together=128) for each in (first, last)]
    assert depths == [3, 0]
    for _ in range(200):
        pool.record(0, 1.0)
    assert consensus.depth(COSTS, 3, last, together=128) == 3


def test_who_is_drafted_for_anyway_waits_as_long_without_a_guess() -> None:
    costs = with_drafting(COSTS, 2)
    assert costs.verify_ms == (12.0, 12.5, 13.0, 13.5)
    assert set(costs.draft_ms) == {0.0}


def guessed(*, in_step: bool, together: int, always: bool = False) -> set[int]:
    """How many siblings guesses have that are decided for by a control which may give them some."""
    costs = RoundCosts()
    costs.expect(*Card(host=0.01, host_guess=0.01).told(1.0))
    budget, pools = NodeBudget(costs), Pools()
    policy = Policy(max_siblings=8, always_siblings=always)
    controls = [DraftControl(costs, policy, pools, budget, in_step=in_step) for _ in range(together)]
    found = set()
    for number in range(60):
        for control in controls:
            choice = control.decide({Source.MODEL: 1} if number else {}, 4)
            stood = choice.length if number % 3 else 0
            sibling = choice.length and number % 3 == 0 and choice.siblings[:1] > (0,)
            control.record(
                Round(
                    choice.length, stood, stood + 1, 0.5 * choice.length, 5.0, rows=together * 5, sessions=together,
                    drafted=choice.length, beside=sum(choice.siblings), tried=1 if sibling else 0, stood=None,
                )
            )  # fmt: skip
            if choice.length:
                found.add(sum(choice.siblings))
    return found


def test_siblings_are_for_those_who_make_nobody_wait() -> None:
    assert max(guessed(in_step=True, together=1)) > 0
    assert max(guessed(in_step=False, together=4)) > 0
    assert guessed(in_step=True, together=4) == {0}
    assert max(guessed(in_step=True, together=4, always=True)) > 0


@pytest.mark.parametrize(("stood", "depth"), [(10, 3), (0, 0)])
def test_who_knows_enough_votes_and_would_take_a_little_more(stood: int, depth: int) -> None:
    """What it decides by is that the step is drafted for so deep anyway."""
    chances, costs = (0.9,) * 6, CostTable((10.0,) * 7, tuple(map(float, range(7))))
    for known in (0.0, 1.0):
        pool = AcceptancePool((0.7,))
        pool.known = known
        consensus = Consensus(pool)
        one = joined(consensus, 4, stood=stood)
        pool.chances = (stood / 10,)
        own_costs, own, vote = consensus.shared(costs, chances, one, 4)
        voted = consensus.depth(costs, 6, one, 4)
        assert (voted >= depth) if depth else (voted == 0)
        assert vote == (voted if known else None)
        assert len(own) == (min(6, voted + WILLING) if known else voted)
        assert own_costs.verify_ms[0] == 10.0 + costs.draft_ms[len(own)]
        assert own_costs.draft_ms == (0.0,) * 7
