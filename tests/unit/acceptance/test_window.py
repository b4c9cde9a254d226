"""The window that makes a request fall back, and the lengths that keep it from that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.choice import expected_accepted, expected_tried
from outrider.acceptance.window import MARGIN, AcceptanceWindow

rounds = st.lists(st.integers(1, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), max_size=60)
"""How many tokens were proposed, and how many stood: where not all did, one fell."""


def filled(pairs: list[tuple[int, int]], size: int = 20, limit: float = 0.5) -> AcceptanceWindow:
    window = AcceptanceWindow(size, limit)
    for proposed, accepted in pairs:
        window.add(proposed, accepted, fell=accepted < proposed)
    return window


def outcomes(pairs: list[tuple[int, int]], size: int) -> list[bool | None]:
    """Of each of the last tokens; None: not tried."""
    found = [
        True if place < accepted else False if place == accepted else None
        for proposed, accepted in pairs
        for place in range(proposed)
    ]
    return found[-size:]


def acceptance(tokens: list[bool | None]) -> float:
    tried = [token for token in tokens if token is not None]
    return sum(tried) / len(tried) if tried else 0.0


@given(rounds, st.integers(1, 30), st.floats(0, 1))
def test_it_judges_the_last_tokens_and_only_a_full_window(
    pairs: list[tuple[int, int]], size: int, limit: float
) -> None:
    window = filled(pairs, size, limit)
    last = outcomes(pairs, size)
    assert window.acceptance == pytest.approx(acceptance(last))
    assert window.too_low == (len(last) == size and acceptance(last) < limit)


def test_the_limit_itself_is_not_too_low_and_zero_never_is() -> None:
    assert not filled([(4, 1)] * 5).too_low
    assert filled([(4, 1)] * 4 + [(2, 0)] * 2).too_low
    assert not filled([(2, 0)] * 10, limit=0.0).too_low


def test_what_comes_after_one_that_fell_does_not_count() -> None:
    """Nor what comes after a sibling that stood in the place of one that fell."""
    assert filled([(6, 2)] * 4).acceptance == pytest.approx(2 / 3)
    window = AcceptanceWindow(20, 0.5)
    window.add(6, 3, fell=False)
    assert window.acceptance == 1.0


@given(rounds, st.integers(1, 6), st.floats(0, 1), st.floats(0, 1))
def test_it_bears_what_leaves_it_full_above_its_limit(
    pairs: list[tuple[int, int]], length: int, part: float, best: float
) -> None:
    size, new = 20, 1.0 + part * (length - 1)
    window, expected = filled(pairs, size), new * best * 0.8
    last = outcomes(pairs, size)
    kept = last[max(0, len(last) + length - size) :]
    later = max(0, size - len(last) - length)
    stood = sum(token is True for token in kept) + expected + best * later
    tried = sum(token is not None for token in kept) + new + later
    assert window.bears(length, new, expected, best) == (stood >= (0.5 + MARGIN) * tried)


@pytest.mark.parametrize(
    ("chances", "longest"),
    [((0.9,) * 29, 29), ((0.6,) * 29, 29), ((0.5,) * 29, 0), ((0.7, 0.5, 0.3, 0.1), 3), ((0.9, 0.1, 0.1), 1)],
)
def test_it_sustains_what_stays_above_its_limit_for_ever(chances: tuple[float, ...], longest: int) -> None:
    """However long, where tokens stand as often as the first; where further ones fall more often, not too long."""
    window = AcceptanceWindow(200, 0.5)
    expected = expected_accepted(chances)
    both = list(zip(expected_tried(expected), expected, strict=True))
    assert [window.sustains(*each) for each in both] == [length <= longest for length in range(1, len(both) + 1)]
    assert AcceptanceWindow(200, 0.0).sustains(29, 0.0)


def test_without_a_limit_it_bears_everything() -> None:
    assert filled([(2, 0)] * 10, limit=0.0).bears(6, 1.0, 0.0, 0.0)


def test_a_cleared_window_has_to_fill_again() -> None:
    window = filled([(2, 0)] * 10)
    window.clear()
    window.add(19, 0, fell=True)
    assert not window.too_low
    window.add(1, 0, fell=True)
    assert window.too_low
