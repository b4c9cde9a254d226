"""Protobuf <-> what a replica's passes take, as its Welcome says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    apart, plain, further = map(_by_rows, (times.apart, times.plain, times.further))
    return [
        replica_pb2.StepTime(
            rows=rows,
            microseconds=round(milliseconds * 1e3),
            sessions=-(-rows // times.each),
            apart_microseconds=round(apart.get(rows, 0.0) * 1e3),
            plain_microseconds=round(plain.get(rows, 0.0) * 1e3),
            further_microseconds=round(further.get(rows, 0.0) * 1e3),
        )
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
    if beyond := next((each for each in wire if each.sessions > each.rows), None):
        raise InvalidArgument(f"{name}.sessions", beyond.sessions, f"at most the rows, {beyond.rows}")
    each = -(-rows[-1] // (wire[-1].sessions or rows[-1]))
    times = _rising(rows, [each.microseconds for each in wire])
    apart = _told([(each.rows, each.apart_microseconds) for each in wire])
    plain = _told([(each.rows, each.plain_microseconds) for each in wire])
    further = _told([(each.rows, each.further_microseconds) for each in wire])
    return replace(times, each=each, apart=apart, plain=plain, further=further)


def _by_rows(times: StepTimes | None) -> dict[int, float]:
    return {} if times is None else dict(zip(times.rows, times.milliseconds, strict=True))


def _told(found: Sequence[tuple[int, int]]) -> StepTimes | None:
    """Of rows and microseconds those that were measured."""
    measured = [(rows, time) for rows, time in found if time]
    return _rising(tuple(rows for rows, _ in measured), [time for _, time in measured]) if measured else None


def _rising(rows: tuple[int, ...], microseconds: Sequence[int]) -> StepTimes:
    """A time that falls with the rows was measured badly."""
    times = [max(time, 1) / 1e3 for time in microseconds]
    return StepTimes(rows, monotone(times, [1.0] * len(times)))
