"""The window that makes a request fall back, and the lengths that keep it from that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.window import MARGIN, AcceptanceWindow

rounds = st.lists(st.integers(1, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), max_size=60)


def filled(pairs: list[tuple[int, int]], size: int = 20, limit: float = 0.5) -> AcceptanceWindow:
    window = AcceptanceWindow(size, limit)
    for proposed, accepted in pairs:
        window.add(proposed, accepted)
    return window


@given(rounds, st.integers(1, 30), st.floats(0, 1))
def test_it_judges_the_last_tokens_and_only_a_full_window(
    pairs: list[tuple[int, int]], size: int, limit: float
) -> None:
    window = filled(pairs, size, limit)
    every = [index < accepted for proposed, accepted in pairs for index in range(proposed)]
    last = every[-size:]
    assert window.acceptance == pytest.approx(sum(last) / len(last) if last else 0.0)
    assert window.too_low == (len(every) >= size and sum(last) / size < limit)


def test_the_limit_itself_is_not_too_low_and_zero_never_is() -> None:
    assert not filled([(2, 1)] * 10).too_low
    assert filled([(2, 1)] * 9 + [(2, 0)]).too_low
    assert not filled([(2, 0)] * 10, limit=0.0).too_low


@given(rounds, st.integers(1, 6), st.floats(0, 1))
def test_it_bears_what_leaves_it_full_above_its_limit(pairs: list[tuple[int, int]], length: int, best: float) -> None:
    size, expected = 20, length * best * 0.8
    window = filled(pairs, size)
    stood = [float(index < accepted) for proposed, accepted in pairs for index in range(proposed)]
    future = [*stood[-size:], *[expected / length] * length][-size:]
    future += [best] * (size - len(future))
    assert window.bears(length, expected, best) == pytest.approx(sum(future) >= (0.5 + MARGIN) * size)


@pytest.mark.parametrize(("chance", "longest"), [(0.9, 11), (0.8, 4), (0.6, 1), (0.5, 0)])
def test_it_sustains_what_stays_above_its_limit_for_ever(chance: float, longest: int) -> None:
    window = AcceptanceWindow(200, 0.5)
    expected = [sum(chance**place for place in range(1, length + 1)) for length in range(1, 30)]
    assert [window.sustains(length, each) for length, each in enumerate(expected, start=1)] == [
        length <= longest for length in range(1, 30)
    ]
    assert AcceptanceWindow(200, 0.0).sustains(29, 0.0)


def test_without_a_limit_it_bears_everything() -> None:
    assert filled([(2, 0)] * 10, limit=0.0).bears(6, 0.0, 0.0)


def test_a_cleared_window_has_to_fill_again() -> None:
    window = filled([(2, 0)] * 10)
    window.clear()
    window.add(19, 0)
    assert not window.too_low
    window.add(1, 0)
    assert window.too_low
