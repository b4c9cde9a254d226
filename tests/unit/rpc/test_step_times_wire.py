"""What a replica says its rounds take, on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.step_times import StepTimes
from outrider.errors import InvalidArgument
from outrider.rpc.step_times import MAX_STEP_TIMES, step_times_from_proto, step_times_to_proto
from outrider.v1 import replica_pb2

curves = st.lists(
    st.tuples(st.integers(1, 10**6), st.integers(1, 10**9)), min_size=1, max_size=12, unique_by=lambda pair: pair[0]
)


@given(curves)
def test_they_survive(points: list[tuple[int, int]]) -> None:
    rows = tuple(sorted(row for row, _ in points))
    times = StepTimes(rows, tuple(sorted(microseconds / 1e3 for _, microseconds in points)))
    assert step_times_from_proto("step_times", step_times_to_proto(times)) == times


def test_rounds_of_many_sessions_survive_beside_those_of_few() -> None:
    times = StepTimes((1, 4, 16, 64), (4.0, 4.1, 4.5, 6.0), 8, StepTimes((4, 16), (4.3, 5.0)))
    assert step_times_from_proto("step_times", step_times_to_proto(times)) == times


def test_no_more_sessions_than_rows() -> None:
    with pytest.raises(InvalidArgument) as caught:
        step_times_from_proto("step_times", [replica_pb2.StepTime(rows=2, microseconds=9, sessions=3)])
    assert caught.value.field == "step_times.sessions"


def test_nothing_may_be_said() -> None:
    assert step_times_to_proto(None) == []
    assert step_times_from_proto("step_times", []) is None


def wire(*rows: int) -> list[replica_pb2.StepTime]:
    return [replica_pb2.StepTime(rows=each, microseconds=1000) for each in rows]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        (wire(0, 1), "step_times.rows"),
        (wire(2, 1), "step_times.rows"),
        (wire(1, 1), "step_times.rows"),
        (wire(*range(1, MAX_STEP_TIMES + 2)), "step_times"),
    ],
)
def test_what_cannot_be_is_refused(said: list[replica_pb2.StepTime], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        step_times_from_proto("step_times", said)
    assert caught.value.field == field


def test_a_time_that_falls_was_measured_badly() -> None:
    said = [replica_pb2.StepTime(rows=rows, microseconds=1000 * time) for rows, time in ((1, 4), (2, 2), (4, 9))]
    assert step_times_from_proto("step_times", said) == StepTimes((1, 2, 4), (3.0, 3.0, 9.0))


def test_what_plain_rounds_in_a_row_take_survives() -> None:
    times = StepTimes((1, 4, 16), (1.0, 1.5, 2.0), plain=StepTimes((1, 16), (0.8, 1.75)))
    assert step_times_from_proto("step_times", step_times_to_proto(times)) == times


def test_what_further_tokens_take_survives() -> None:
    times = StepTimes((1, 4, 16), (1.0, 1.5, 2.0), further=StepTimes((4, 16), (0.5, 0.75)))
    assert step_times_from_proto("step_times", step_times_to_proto(times)) == times
