"""What replicas made by tests measure of themselves when they start: for replicas that are alike, once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from outrider.acceptance.step_times import StepTimes
from outrider.engine.core import ReplicaCore
from outrider.engine.guessing_times import goes_ahead
from outrider.routing.records import Role

Measured = tuple[StepTimes | None, StepTimes | None]
Measure = Callable[[ReplicaCore[Any], Role], Measured]

_known: dict[Hashable, Measured] = {}


def measured_once(measure: Measure) -> Measure:
    """`measure`, which takes a second or more by its nature, asked once for replicas of the same model and options."""

    def times_of(core: ReplicaCore[Any], role: Role) -> Measured:
        kind = (role, _kind_of(core), core.own_draft and _kind_of(core.own_draft), goes_ahead(core))
        if kind not in _known:
            _known[kind] = measure(core, role)
        return _known[kind]

    return times_of


def forget() -> None:
    """The next replica measures again."""
    _known.clear()


def _kind_of(core: ReplicaCore[Any]) -> Hashable:
    return type(core), core.engine.info, core.engine.options, core.max_proposal
