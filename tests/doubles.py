"""Doubles of what draws on a GPU, for whole processes: passes take what is drawn, and rounds go ahead, on a CPU too."""

from __future__ import annotations

from typing import Any

from outrider.engine import engine, guessing_times
from outrider.sampling import verify as judging
from tests.unit.engine.test_drafting_together import Stepwise
from tests.unit.engine.test_launch_ahead import draw_apart
from tests.unit.engine.test_verify_behind import Behind

_make_runner = engine.make_runner


def drawing_apart() -> list[tuple[object, str, object]]:
    """What is to be replaced by what: an object, the name of an attribute, and its double."""

    def make_runner(*arguments: Any, **named: Any) -> Stepwise:
        run = Stepwise(Behind(_make_runner(*arguments, **named)))  # type: ignore[arg-type]
        run.takes_drawn = True
        return run

    return [
        (engine, "make_runner", make_runner),
        (judging, "draw_plain", draw_apart),
        (guessing_times, "SESSIONS", (1, 2)),
    ]
