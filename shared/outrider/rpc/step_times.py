"""Protobuf <-> what a replica's passes take, as its Welcome says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from outrider.acceptance.curve import monotone
from outrider.acceptance.step_times import StepTimes
from outrider.errors import InvalidArgument
from outrider.v1 import replica_pb2

MAX_STEP_TIMES = 64
"""Most numbers of rows that a replica may tell of."""


def step_times_to_proto(times: StepTimes | None) -> list[replica_pb2.StepTime]:
    """The wire form of what passes take; None is empty."""
    if times is None:
        return []
    return [
        replica_pb2.StepTime(rows=rows, microseconds=round(milliseconds * 1e3))
        for rows, milliseconds in zip(times.rows, times.milliseconds, strict=True)
    ]


def step_times_from_proto(name: str, wire: Sequence[replica_pb2.StepTime]) -> StepTimes | None:
    """What passes take, None where nothing is said. Raise InvalidArgument for what cannot be; `name`: the field."""
    if not wire:
        return None
    if len(wire) > MAX_STEP_TIMES:
        raise InvalidArgument(name, len(wire), f"at most {MAX_STEP_TIMES}")
    rows = tuple(each.rows for each in wire)
    if rows[0] < 1 or any(after <= before for before, after in pairwise(rows)):
        raise InvalidArgument(f"{name}.rows", rows, "rising, from 1 on")
    times = tuple(max(each.microseconds, 1) / 1e3 for each in wire)
    return StepTimes(rows, monotone(times, [1.0] * len(times)))
