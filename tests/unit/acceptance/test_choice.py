"""The decision itself, against trying everything."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.choice import (
    BEGIN_MARGIN,
    NO_WINDOW,
    PLAIN,
    STAY_MARGIN,
    Beside,
    Choice,
    can_pay,
    choose,
    expected_accepted,
    rate,
)
from outrider.acceptance.costs import CostTable
from outrider.acceptance.proposal import Source
from outrider.acceptance.shape import expected, gains, widths_of
from outrider.acceptance.window import AcceptanceWindow

LONGEST = 5
rising = st.lists(st.floats(0, 20), min_size=LONGEST + 1, max_size=LONGEST + 1)
tables = st.builds(
    lambda plain, more, draft: CostTable(
        tuple(plain + sum(more[:k]) for k in range(LONGEST + 1)), tuple(sorted(draft))
    ),
    st.floats(1, 100),
    rising,
    rising,
)
chains = st.lists(st.floats(0, 0.98), min_size=LONGEST, max_size=LONGEST)


def flat(verify: float, draft: float) -> CostTable:
    """A plain round takes 1 ms; each token so much more."""
    counts = range(LONGEST + 1)
    return CostTable(tuple(1 + verify * n for n in counts), tuple(draft * n for n in counts))


def test_expected_accepted_sums_the_chances_of_reaching_each_token() -> None:
    assert expected_accepted((0.5, 0.8, 0.25)) == pytest.approx((0.5, 0.9, 1.0))


@given(tables, chains, chains)
def test_it_is_the_fastest_of_all(costs: CostTable, ngram: list[float], model: list[float]) -> None:
    chosen = choose(costs, {Source.NGRAM: ngram, Source.MODEL: model}, NO_WINDOW)

    def speed(choice: Choice) -> float:
        chances = {Source.NGRAM: ngram, Source.MODEL: model, Source.NONE: []}[choice.source]
        reached, tokens = 1.0, 1.0
        for chance in chances[: choice.length]:
            reached *= chance
            tokens += reached
        draft = costs.draft_ms[choice.length] if choice.source is Source.MODEL else 0.0
        return tokens / (costs.verify_ms[choice.length] + draft)

    every = [PLAIN, *(Choice(s, k) for s in (Source.NGRAM, Source.MODEL) for k in range(1, LONGEST + 1))]
    best = max(map(speed, every))
    if chosen != PLAIN:
        assert speed(chosen) == pytest.approx(best)
    else:
        assert best <= (1 + STAY_MARGIN) * speed(PLAIN) * (1 + 1e-9)


@given(tables, chains, st.sampled_from([None, PLAIN, Choice(Source.MODEL, 1), Choice(Source.MODEL, 4)]))
def test_it_is_never_expected_to_be_slower_than_plain_decoding(
    costs: CostTable, chances: list[float], previous: Choice | None
) -> None:
    chosen = choose(costs, {Source.MODEL: chances}, NO_WINDOW, previous)
    if chosen != PLAIN:
        margin = BEGIN_MARGIN if previous == PLAIN else STAY_MARGIN
        assert rate(costs, chosen, expected_accepted(chances)[chosen.length - 1]) >= (1 + margin) * rate(costs, PLAIN)


@given(tables, chains, st.lists(st.floats(0, 1), max_size=2), st.integers(0, 3), st.integers(0, 5))
def test_with_siblings_it_is_the_fastest_of_all_trees(
    costs: CostTable, model: list[float], others: list[float], most: int, nodes: int
) -> None:
    wide = CostTable(costs.verify_ms + (costs.verify_ms[-1],) * most, costs.draft_ms + (costs.draft_ms[-1],) * most)
    beside = Beside(tuple(others), most, nodes)
    chosen = choose(wide, {Source.MODEL: model}, NO_WINDOW, beside={Source.MODEL: beside})
    table = gains(model, others)

    def speed(length: int, widths: tuple[int, ...]) -> float:
        drafting = wide.draft_ms[length] if length else 0.0
        return (1.0 + expected(widths, table)) / (wide.verify_ms[sum(widths)] + drafting)

    best = speed(0, ())
    for length in range(1, LONGEST + 1):
        for widths in itertools.product(range(1, len(others) + 2), repeat=length):
            if sum(widths) == length or sum(widths) <= min(length + most, nodes):
                best = max(best, speed(length, widths))
    if chosen == PLAIN:
        assert best <= (1 + STAY_MARGIN) * speed(0, ()) * (1 + 1e-9)
    else:
        assert speed(chosen.length, widths_of(chosen.length, chosen.siblings)) == pytest.approx(best)


def test_what_gains_no_more_than_its_price_is_left_out() -> None:
    costs = flat(0.0, 0.0)
    beside = {Source.MODEL: Beside((0.5, 0.5), 5, 63)}
    wide = CostTable(costs.verify_ms + (1.0,) * 5, costs.draft_ms + (0.0,) * 5)
    chances = {Source.MODEL: (0.8, 0.5, 0.5)}  # gains .8, .4, .2; beside them .1, .05 and .1, .1 and so on
    free = choose(wide, chances, NO_WINDOW, beside=beside)
    assert (free.length, sum(free.siblings)) == (3, 5)
    assert choose(wide, chances, NO_WINDOW, beside=beside, price=0.3) == Choice(Source.MODEL, 2)
    assert choose(wide, chances, NO_WINDOW, beside=beside, price=0.8) == PLAIN


def test_a_small_gain_is_no_reason_to_change() -> None:
    costs, first, second = flat(0.1, 0.1), (0.5,) * LONGEST, (0.505,) * LONGEST
    best = choose(costs, {Source.MODEL: first}, NO_WINDOW)
    assert best != PLAIN
    # Sources that are equally good: whichever it is, it stays.
    both = {Source.MODEL: first, Source.NGRAM: first}
    free = CostTable(costs.verify_ms, (0.0,) * (LONGEST + 1))
    for source in both:
        assert choose(free, both, NO_WINDOW, Choice(source, best.length)).source is source
    assert choose(free, {**both, Source.NGRAM: second}, NO_WINDOW, Choice(Source.MODEL, 2)).source is Source.MODEL
    assert choose(free, {**both, Source.NGRAM: (0.9,) * LONGEST}, NO_WINDOW, Choice(Source.MODEL, 2)) == Choice(
        Source.NGRAM, LONGEST
    )


def test_beginning_takes_a_greater_margin_than_staying() -> None:
    costs = flat(0.0, 0.5)
    slightly = {Source.MODEL: (0.55, 0.0, 0.0, 0.0, 0.0)}  # 1.55 tokens in 1.5 ms
    assert choose(costs, slightly, NO_WINDOW, PLAIN) == PLAIN
    assert choose(costs, slightly, NO_WINDOW, Choice(Source.MODEL, 1)) == Choice(Source.MODEL, 1)
    assert choose(costs, {Source.MODEL: (0.51, 0.0, 0.0, 0.0, 0.0)}, NO_WINDOW, Choice(Source.MODEL, 1)) == PLAIN


def test_a_window_near_its_limit_makes_guesses_shorter() -> None:
    costs, chances = flat(0.0, 0.001), {Source.MODEL: (0.62, *(0.42,) * (LONGEST - 1))}
    window = AcceptanceWindow(20, 0.5)
    assert choose(costs, chances, window).length == LONGEST
    for _ in range(20):
        stands = window.acceptance < 0.55
        window.add(1, int(stands), fell=not stands)
    assert choose(costs, chances, window).length < 3


def test_one_token_is_left_even_where_the_window_cannot_be_saved() -> None:
    window = AcceptanceWindow(4, 0.5)
    for _ in range(4):
        window.add(1, 0, fell=True)
    assert choose(flat(0.0, 0.01), {Source.MODEL: (0.4,) * LONGEST}, window) == Choice(Source.MODEL, 1)


def test_what_costs_more_than_it_can_bring_cannot_pay() -> None:
    assert can_pay(flat(0.1, 0.3), Source.MODEL, LONGEST)
    assert not can_pay(flat(0.0, 1.0), Source.MODEL, LONGEST)
    assert can_pay(flat(0.0, 1.0), Source.NGRAM, LONGEST)
