"""Sessions that wait for each other's guesses agree on how long those are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.votes import agreed_depth


@pytest.mark.parametrize(
    ("votes", "depth"),
    [([], 0), ([3], 3), ([2, 3], 3), ([0, 0, 5], 0), ([0, 5, 5], 5), ([4, 1, 2], 2), ([0, 0, 4, 4], 4)],
)
def test_the_middle_decides(votes: list[int], depth: int) -> None:
    assert agreed_depth(votes) == depth


@given(st.lists(st.integers(0, 8), min_size=1))
def test_half_of_them_want_as_much_and_half_no_more(votes: list[int]) -> None:
    depth = agreed_depth(votes)
    assert 2 * sum(vote >= depth for vote in votes) >= len(votes)
    assert 2 * sum(vote <= depth for vote in votes) >= len(votes)
