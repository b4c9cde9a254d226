"""Rounds played over recorded answers: against the match rule, the counts of distillation, and by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.accept import accept
from outrider.acceptance.choice import expected_accepted
from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import Proposal, Source, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.distill.evaluate import Acceptance
from outrider.profiling.rounds import Rounds, play_guesses, play_ngrams
from outrider.profiling.trees import chances_beside, place_siblings

RANKS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def constant_chance_length(chance: float, length: int) -> float:
    """Expected tokens of a round if each token stands with the same chance (Leviathan et al. 2023, equation 1)."""
    return length + 1.0 if chance == 1.0 else (1.0 - chance ** (length + 1)) / (1.0 - chance)


@given(RANKS, st.integers(1, 6))
def test_chains_are_counted_as_distillation_counts_them(ranks: list[int], length: int) -> None:
    expected = Acceptance()
    expected.add([rank == 0 for rank in ranks], length)
    found = play_guesses(ranks, length)
    assert (found.rounds, found.proposed, found.accepted) == (expected.rounds, expected.proposed, expected.accepted)
    assert found.tokens == len(ranks)


@given(RANKS, st.integers(1, 5), st.lists(st.integers(0, 2), max_size=6))
def test_trees_are_those_of_the_match_rule(ranks: list[int], length: int, siblings: list[int]) -> None:
    """Played with real trees: the answer's token at i is 100 + i, the draft's k-th sibling at i if its rank there is k;
    everything else that the draft says is nowhere in the answer."""
    answer = [100 + place for place in range(len(ranks))]

    def said(place: int, rank: int) -> int:
        return answer[place] if ranks[place] == rank else rank

    place = rounds = proposed = accepted = 0
    while place < len(answer):
        depth = min(length, len(answer) - place - 1)
        counts = [*siblings[:depth], *[0] * (depth - len(siblings))]
        chain = [said(place + i, 0) for i in range(depth)]
        beside = [tuple(said(place + i, rank) for rank in range(1, count + 1)) for i, count in enumerate(counts)]
        tree = TokenTree.caterpillar(chain, beside) if depth else TokenTree((), ())
        # Rows: the root, then each node; the target says the answer's next token after each that is right.
        drawn = (answer[place], *(answer[min(place + d, len(answer) - 1)] for d in tree.depths()))
        outcome = accept(Rule.MATCH, Proposal(tree, Source.MODEL), Verdict(drawn), seed=0, base_length=place)
        rounds, proposed, accepted = rounds + 1, proposed + len(tree), accepted + len(outcome.accepted)
        place += len(outcome.accepted) + 1
    found = play_guesses(ranks, length, siblings)
    assert (found.rounds, found.proposed, found.accepted) == (rounds, proposed, accepted)


def test_a_chain_by_hand() -> None:
    # Guesses of 2: [0 0] stand, 1 follows; [1 .] falls at once; [0 2] stands half; then one token is left, no guess.
    found = play_guesses([0, 0, 1, 1, 0, 2, 0], 2)
    assert found.shapes == {(2, 2): 3, (0, 0): 1}
    assert (found.rounds, found.proposed, found.accepted, found.tokens) == (4, 6, 3, 7)
    assert found.rate == 3 / 6
    assert found.length == 7 / 4
    assert found.chances == (2 / 3, 1 / 2)


def test_a_tree_saves_a_round_where_the_second_choice_is_right() -> None:
    # The chain of 2 falls at the first token, its second choice stands: 2 tokens instead of 1.
    assert play_guesses([1, 0, 0, 0], 2).rounds == 2
    tree = play_guesses([1, 0, 0, 0], 2, (1,))
    assert tree.shapes == {(2, 3): 1, (1, 2): 1}
    assert tree.accepted == 2


def test_ngrams_by_hand() -> None:
    # After 1 2 3 1 the suffix (3 1) is new; after 1 2 it is (1 2), which 3 1 followed.
    found = play_ngrams([1, 2, 3], [1, 2, 3, 1, 9], 2)
    # Rounds: no match after 1 -> 2; match (1 2) -> guess 3 1, both stand, 9 follows.
    assert found.shapes == {(0, 0): 1, (2, 2): 1}
    assert (found.accepted, found.tokens) == (2, 4)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=30), st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_ngram_rounds_commit_the_whole_answer(prompt: list[int], answer: list[int]) -> None:
    assert play_ngrams(prompt, answer, 3).tokens == len(answer) - 1


def test_expected_length_follows_from_the_chances_by_position() -> None:
    """The controller's sum of products gives back what was played, where no guess was cut short."""
    found = Rounds()
    for accepted in (0, 0, 1, 2, 3, 3, 0, 1):
        found.add(3, 3, accepted)
    assert found.chances == pytest.approx((5 / 8, 3 / 5, 2 / 3))
    assert 1 + expected_accepted(found.chances)[-1] == pytest.approx(found.length)
    assert found.length == pytest.approx(1 + 10 / 8)


@pytest.mark.parametrize(("chance", "length"), [(0.5, 1), (0.8, 4), (0.95, 8)])
def test_a_constant_chance_gives_the_formula_of_leviathan_et_al(chance: float, length: int) -> None:
    draws = random.Random(7)
    ranks = [0 if draws.random() < chance else 1 for _ in range(60_000)]
    assert play_guesses(ranks, length).length == pytest.approx(constant_chance_length(chance, length), rel=0.02)


def test_the_formula_by_hand() -> None:
    assert constant_chance_length(0.5, 2) == 1.75
    assert constant_chance_length(1.0, 4) == 5.0
    assert constant_chance_length(0.0, 4) == 1.0


def test_a_sibling_deeper_in_the_chain() -> None:
    # 0 stands, 2 is the second sibling of the second place: three tokens; then one is left.
    found = play_guesses([0, 2, 0, 0], 3, (0, 2))
    assert found.shapes == {(3, 5): 1, (0, 0): 1}
    assert found.accepted == 2


def test_chances_beside_are_of_the_misses_that_are_left() -> None:
    assert chances_beside([[0, 1, 2], [0, 1, 9]]) == (2 / 4, 1 / 2, 0, 0, 0, 0, 0, 0)
    assert chances_beside([[0, 1, 1]]) == (1.0,)
    assert chances_beside([[0, 0]]) == ()


def test_siblings_are_placed_where_they_add_most() -> None:
    # Beside the first token 0.4 * 0.5 = 0.2, again half of the rest 0.1; beside the second 0.6 * 0.4 * 0.5 = 0.12.
    found = place_siblings((0.6, 0.6), (0.5, 0.5), (1, 2, 4))
    assert found[2, 1] == (1,)
    assert found[2, 2] == (1, 1)
    assert found[1, 2] == (2,)
    assert set(found) == {(1, 1), (1, 2), (2, 1), (2, 2)}  # four tokens at most; a third sibling has no chance
    assert place_siblings((0.6, 0.6), (), (1, 2, 4)) == {}
