"""What is left out when time is short."""

from __future__ import annotations

import pytest

from outrider.profiling.budget import RowPlan, affordable, coarsened, plan_row

TOKENS = tuple(range(9))
CALLS = dict.fromkeys(TOKENS, 1.0)  # one second each


@pytest.mark.parametrize(
    ("left", "plan"),
    [
        (100.0, RowPlan(TOKENS, 7)),  # 8 sweeps of 9
        (71.0, RowPlan(TOKENS, 3)),  # 4 of 9
        (35.0, RowPlan((0, 1, 2, 4, 8), 3)),
        (19.0, RowPlan((0, 8), 7)),
        (9.0, RowPlan((0, 8), 3)),
        (7.0, None),
    ],
)
def test_the_finest_plan_that_fits(left: float, plan: RowPlan | None) -> None:
    assert plan_row(CALLS, TOKENS, 7, left, prepare_s=0.0, more=False) == plan


def test_preparing_counts_and_later_rows_keep_their_share() -> None:
    assert plan_row(CALLS, TOKENS, 7, 73.0, prepare_s=2.0, more=False) == RowPlan(TOKENS, 3)
    assert plan_row(CALLS, TOKENS, 7, 100.0, prepare_s=0.0, more=True) == RowPlan(TOKENS, 3)


def test_coarse_steps() -> None:
    assert coarsened(tuple(range(17))) == (0, 1, 2, 4, 8, 16)
    assert coarsened((1, 2, 3)) == (1, 2, 3)
    assert coarsened((5,)) == (5,)


def test_questions_that_fit() -> None:
    assert affordable([10, 10, 10], 1.0, 25.0) == 2
    assert affordable([10, 10, 10], 1.0, 30.0) == 3
    assert affordable([10], 1.0, 1.0) == 1
    assert affordable([0, 0, 10], 1.0, 1.0) == 2  # answered already
