"""The outcome cache answers for the outcomes of its own round; the fan-out takes the likeliest of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.fan_out import BONUS_PRIOR, RECOVERED_PRIOR, RankEstimate, fan_out
from outrider.acceptance.outcomes import Lookup, OutcomeCache
from outrider.acceptance.proposal import Proposal, Source
from outrider.acceptance.tree import ROOT, TokenTree

TREE = TokenTree((5, 6, 7), (-1, 0, 0))


def proposal(*tokens: int) -> Proposal:
    return Proposal(TokenTree.chain(tokens), Source.MODEL)


CACHE = OutcomeCache(
    3, TREE, [(ROOT, 8, proposal(1)), (ROOT, 9, proposal(2)), (0, 8, proposal(3)), (2, 4, proposal(4))]
)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ((8,), Lookup(proposal(1), 0, False)),
        ((9,), Lookup(proposal(2), 1, False)),
        ((4,), Lookup(None, None, False)),
        ((5, 8), Lookup(proposal(3), 0, False)),
        ((5, 9), Lookup(None, None, False)),
        ((5, 7, 4), Lookup(proposal(4), 0, True)),
        ((5, 6, 4), Lookup(None, None, True)),
        ((), None),  # the round has not ended
        ((6, 8), None),  # no path in flight begins with 6: another round's outcome
        ((5, 7, 4, 1), None),  # two rounds have passed
    ],
)
def test_only_the_rounds_own_outcomes_find_something(since: tuple[int, ...], expected: Lookup | None) -> None:
    assert CACHE.find([1, 2, 3, *since]) == expected


def test_it_takes_the_likeliest_outcomes() -> None:
    # P(ends after 0, 1, 2) = .2, .8 * .5, .8 * .5; ranks .5, .25 after a fall and .75, .125 at the end.
    chain = TokenTree.chain((5, 6))
    assert fan_out(chain, (0.8, 0.5), (0.5, 0.25), (0.75, 0.125), 1) == (0, 0, 1)  # .3
    assert fan_out(chain, (0.8, 0.5), (0.5, 0.25), (0.75, 0.125), 2) == (0, 1, 1)  # .2
    assert sum(fan_out(chain, (0.8, 0.5), (0.5, 0.25), (0.75, 0.125), 4)) == 4
    assert fan_out(chain, (0.8, 0.5), (0.5, 0.25), (0.75, 0.125), 99) == (2, 2, 2)
    assert fan_out(TokenTree((), ()), (), (0.5,), (0.75, 0.2), 1) == (1,)


chances = st.lists(st.floats(0, 1), max_size=5)
ranks = st.lists(st.floats(0, 0.5), min_size=1, max_size=4).map(lambda each: sorted(each, reverse=True))


@given(chances, ranks, ranks, st.integers(0, 6))
def test_no_other_shape_of_the_same_size_is_hit_more_often(
    stand: list[float], recovered: list[float], bonus: list[float], budget: int
) -> None:
    def hit_rate(shape: tuple[int, ...]) -> float:
        total, reach = 0.0, 1.0
        for depth, count in enumerate(shape):
            last = depth == len(stand)
            ends = reach * (1.0 if last else 1.0 - stand[depth])
            total += ends * sum((bonus if last else recovered)[:count])
            reach *= 1.0 if last else stand[depth]
        return total

    found = fan_out(TokenTree.chain(range(len(stand))), stand, recovered, bonus, budget)
    assert sum(found) <= budget
    others = itertools.product(range(min(budget, 4) + 1), repeat=len(stand) + 1)
    best = max(hit_rate(shape) for shape in others if sum(shape) <= budget)
    assert hit_rate(found) == pytest.approx(best)


def test_with_siblings_in_flight_their_outcomes_count_and_ranks_begin_after_theirs() -> None:
    # Node 0 stands with .5 and its sibling, node 2, with .4; node 1 follows node 0 with .8.
    tree = TokenTree.caterpillar((5, 6), ((7,),))
    # P(ends at the root, at nodes 0, 1, 2) = .1, .1, .4, .4; after the root the second rank: .25 / .5.
    ranks, chances = ((0.5, 0.25), (0.8, 0.1)), (0.5, 0.8, 0.4)
    assert fan_out(tree, chances, *ranks, 2) == (0, 0, 1, 1)  # .32
    assert fan_out(tree, chances, *ranks, 4) == (1, 1, 1, 1)  # .05
    assert fan_out(tree, chances, *ranks, 99) == (1, 2, 2, 2)


def test_ranks_are_learned_and_never_rise() -> None:
    for prior in (RECOVERED_PRIOR, BONUS_PRIOR):
        estimate = RankEstimate(prior)
        assert estimate.chances == pytest.approx(prior)
        assert sum(prior) < 1
        for _ in range(300):
            estimate.record(1)
            estimate.record(None)
        assert estimate.chances[0] < prior[0]  # a first choice that never comes
        assert list(estimate.chances) == sorted(estimate.chances, reverse=True)
        for _ in range(300):
            estimate.record(0)
        assert estimate.chances[0] > 0.75
