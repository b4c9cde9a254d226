"""Sessions that share a step: each takes what brings the most to all of them together."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import RoundCosts
from outrider.acceptance.node_budget import NodeBudget, RowTimes, best_price, time_at
from outrider.acceptance.policy import Policy
from outrider.acceptance.pools import Pools
from outrider.acceptance.proposal import Source
from outrider.acceptance.round import Round
from outrider.acceptance.shape import Gains, expected, gains, gains_in_order, spread, widths_of

POLICY = Policy(fallback_acceptance=0.0, max_siblings=8)
STANDS, OTHERS = 0.8, (0.4, 0.25, 0.2)


def gpu(rows: int) -> float:
    """Milliseconds of a step: as good as free up to 16 rows, then limited by arithmetic."""
    return 10.0 + 0.02 * rows + 0.6 * max(0, rows - 16)


def small(rows: int) -> float:
    """Limited by arithmetic from the first row on."""
    return 2.0 + 1.0 * rows


@dataclass
class Fleet:
    """Sessions in step with each other on one simulated verifier. A draft takes a fiftieth of a small step a token."""

    machine: Callable[[int], float]
    count: int
    shared: bool = True
    seed: int = 1
    controls: list[DraftControl] = field(init=False)

    def __post_init__(self) -> None:
        costs, pools, budget = RoundCosts(), Pools(), NodeBudget()
        self.random = random.Random(self.seed)
        self.controls = [DraftControl(costs, POLICY, pools, budget if self.shared else None) for _ in range(self.count)]
        self.nodes = 0.0  # of the last run, a session and a step
        self.siblings = 0.0

    def run(self, steps: int) -> float:
        """Committed tokens a millisecond."""
        committed, spent, nodes, siblings = 0, 0.0, 0, 0
        for step in range(steps):
            choices = [control.decide({Source.MODEL: 1}, 6) for control in self.controls]
            sizes = [choice.length + sum(choice.siblings) for choice in choices]
            rows = self.count + sum(sizes)
            verify_ms = self.machine(rows)
            draft_ms = 0.02 * self.machine(1) * max(choice.length for choice in choices)
            for control, choice, size in zip(self.controls, choices, sizes, strict=True):
                result = self._played(choice.length, choice.siblings, size, verify_ms, draft_ms, rows, first=step == 0)
                control.record(result)
                committed += result.committed
                siblings += result.beside
            spent += verify_ms + draft_ms
            nodes += sum(sizes)
        self.nodes, self.siblings = nodes / steps / self.count, siblings / steps / self.count
        return committed / spent

    def plain(self) -> float:
        """The same without any proposals."""
        return self.count / self.machine(self.count)

    def _played(
        self,
        length: int,
        siblings: tuple[int, ...],
        size: int,
        verify_ms: float,
        draft_ms: float,
        rows: int,
        *,
        first: bool,
    ) -> Round:
        stood, tried, which = 0, 0, None
        while stood < length and self.random.random() < STANDS:
            stood += 1
        if stood < length:
            tried = siblings[stood] if stood < len(siblings) else 0
            which = next((rank for rank in range(tried) if self.random.random() < OTHERS[rank]), None)
        accepted = stood + (which is not None)
        noise = self.random.lognormvariate(0.0, 0.1)
        return Round(
            length,
            accepted,
            accepted + 1,
            draft_ms * noise if length and not first else None,
            verify_ms * noise if not first else None,
            # Who shares nothing looks at its own times alone.
            rows=rows if self.shared else 1 + size,
            sessions=self.count if self.shared else 1,
            beside=size - length,
            tried=tried,
            stood=which,
        )


def test_a_session_alone_has_trees_where_nodes_are_free() -> None:
    fleet = Fleet(gpu, 1)
    fleet.run(120)
    assert fleet.run(120) > 2.5 * fleet.plain()
    assert fleet.siblings > 4


def test_a_few_have_chains_and_many_next_to_nothing() -> None:
    nodes: dict[int, float] = {}
    for count in (1, 2, 6, 16):
        fleet = Fleet(gpu, count)
        fleet.run(100)
        assert fleet.run(60) > 0.96 * fleet.plain()
        nodes[count] = fleet.nodes
        if count == 6:
            assert fleet.siblings < 0.3
    assert nodes[1] > nodes[2] > nodes[6] > 1 > nodes[16]


@pytest.mark.parametrize("count", [2, 8])
def test_together_they_are_near_the_best_shape_that_all_could_have(count: int) -> None:
    """And where the step is full, faster than sessions of which each minds its own times."""
    table = gains((STANDS,) * 6, OTHERS)
    shapes = [widths_of(length, (wide,) * deep) for length in range(7) for wide in (1, 2) for deep in range(length + 1)]
    best = max(
        count * (1 + expected(each, table)) / (gpu(count * (1 + sum(each))) + 0.02 * gpu(1) * len(each))
        for each in shapes
    )
    fleet, alone = Fleet(gpu, count), Fleet(gpu, count, shared=False)
    fleet.run(100)
    alone.run(100)
    speed = fleet.run(100)
    assert speed > 0.85 * best
    assert speed > (0.95 if count == 2 else 1.2) * alone.run(100)


def test_where_every_row_costs_its_time_there_is_no_speculation() -> None:
    fleet = Fleet(small, 12)
    fleet.run(100)
    assert fleet.run(60) > 0.96 * fleet.plain()
    assert fleet.nodes < 0.5


def test_when_neighbours_leave_the_others_speculate_again() -> None:
    fleet = Fleet(gpu, 24)
    fleet.run(80)
    assert fleet.nodes < 2
    for control in fleet.controls[1:]:
        control.close()
    fleet.controls, fleet.count = fleet.controls[:1], 1
    fleet.run(150)
    assert fleet.run(60) > 2 * fleet.plain()


tables = st.builds(gains, st.lists(st.floats(0, 1), max_size=3), st.lists(st.floats(0, 1), max_size=2))
curves = st.lists(st.floats(0, 9), min_size=4, max_size=4).map(
    lambda rises: [(float(rows), 1.0 + sum(rises[: place + 1])) for place, rows in enumerate((1, 2, 6, 20))]
)


@given(st.lists(tables, min_size=1, max_size=4), curves, st.floats(0, 5))
def test_no_budget_commits_more_than_the_one_that_the_price_stands_for(
    sessions: list[Gains], points: list[tuple[float, float]], other_ms: float
) -> None:
    def rate(budget: int) -> float:
        found = spread(budget, sessions)
        tokens = sum(expected(widths, table) for widths, table in zip(found, sessions, strict=True))
        rows = len(sessions) + sum(map(sum, found))
        return (len(sessions) + tokens) / (time_at(points, rows) + other_ms)

    price = best_price(points, sessions, stand_for=1.0, other_ms=other_ms)
    order = gains_in_order(sessions)
    # Equal gains leave several budgets of one price.
    meant = [n for n in range(len(order) + 1) if (order[n] if n < len(order) else 0.0) == price]
    assert max(map(rate, meant)) == pytest.approx(max(map(rate, range(len(order) + 1))))


def test_times_are_medians_by_rows_and_go_on_along_the_last_line() -> None:
    times = RowTimes()
    for rows, milliseconds in ((4, 10.0), (8, 12.0), (16, 20.0)):
        for each in (milliseconds, milliseconds, 10 * milliseconds, milliseconds, milliseconds):
            times.observe(rows, each)
    times.observe(64, 1000.0)  # once says nothing
    points = times.points()
    assert points == [(4.0, 10.0), (8.0, 12.0), (16.0, 20.0)]
    assert [time_at(points, rows) for rows in (1, 4, 6, 8, 12, 16, 32)] == [10.0, 10.0, 11.0, 12.0, 16.0, 20.0, 36.0]
    assert time_at(points[:1], 99) == 10.0


def test_who_reads_a_prompt_is_about_to_share_the_step() -> None:
    budget, fleet = NodeBudget(), Fleet(gpu, 8)
    for control in fleet.controls:
        budget.join(control)
    assert budget.together == 8, "nobody has said how many there are"
    for _ in range(40):
        budget.record(fleet.controls[0], 3, 3, None, None)
    assert budget.together == 24, "one of eight is there, and in a pass of three"
    for control in fleet.controls:
        budget.record(control, 24, 24, None, None)
    for _ in range(200):
        budget.record(fleet.controls[0], 24, 24, None, None)
    assert budget.together == pytest.approx(24)
    budget.leave(fleet.controls[0])
    assert budget.together == pytest.approx(21), "others may have lost as many"
    for _ in range(200):
        budget.record(fleet.controls[0], 24, 24, None, None)
    assert budget.together == pytest.approx(24), "one that has left does not begin"


def test_who_comes_after_all_others_have_left_shares_its_steps_with_as_many() -> None:
    """One burst of requests after the other: that none of the second has begun does not make them more."""
    budget = NodeBudget()
    for _ in range(2):
        fleet = Fleet(gpu, 8)
        for control in fleet.controls:
            budget.join(control)
        for turn, control in enumerate(fleet.controls, start=1):
            budget.record(control, 4 * turn, 4 * turn, None, None)
            assert budget.together == pytest.approx(32)
        for control in fleet.controls:
            budget.leave(control)
