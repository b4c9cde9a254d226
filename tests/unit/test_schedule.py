"""Which sessions join a forward pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.schedule import Demand, schedule

demands = st.lists(st.builds(Demand, chain=st.integers(1, 60), tree=st.integers(0, 7)), min_size=1, max_size=40)


@given(demands, st.integers(8, 64))
def test_a_step_never_exceeds_its_budget_and_always_does_something(wanted: list[Demand], budget: int) -> None:
    grants = schedule(wanted, budget=budget, decode_limit=8)
    used = sum(demand.total if grant == demand.chain else grant for demand, grant in zip(wanted, grants, strict=True))
    assert 0 < used <= budget
    assert all(0 <= grant <= demand.chain for demand, grant in zip(wanted, grants, strict=True))


@given(demands, st.integers(8, 64))
def test_a_decoding_session_is_never_split(wanted: list[Demand], budget: int) -> None:
    for demand, grant in zip(wanted, schedule(wanted, budget=budget, decode_limit=8), strict=True):
        if demand.total <= 8:
            assert grant in (0, demand.chain)


@given(demands, st.integers(8, 64))
def test_everybody_is_done_in_the_end(wanted: list[Demand], budget: int) -> None:
    left = list(wanted)
    for _ in range(10_000):
        if not left:
            return
        grants = schedule(left, budget=budget, decode_limit=8)
        left = [
            Demand(demand.chain - grant, demand.tree)
            for demand, grant in zip(left, grants, strict=True)
            if grant < demand.chain
        ]
    raise AssertionError(f"{left} never ran")


def test_prefill_is_not_starved_by_a_full_house_of_decoding_sessions() -> None:
    grants = schedule([Demand(1, 7)] * 100 + [Demand(500, 0)], budget=64, decode_limit=8)
    assert grants[-1] > 0
    assert sum(grants[:-1]) > 0


def test_a_chunk_leaves_the_last_token_to_run_with_the_tree() -> None:
    assert schedule([Demand(40, 4)], budget=40, decode_limit=8) == [39]
