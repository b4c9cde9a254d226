"""When a session leaves a verifier that drains, and when a coordinator does."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.routing.choose import Candidate
from outrider_coordinator.draining import hands_over, leave_if_idle, moves_at_once
from outrider_coordinator.placements import Placement, Placements

ROOMY = Candidate("b:1", free_tokens=100)
UNKNOWN = Candidate("c:1")


def link(hands_over_at: float | None) -> Any:
    """What is asked of a link."""
    left: list[bool] = []
    return SimpleNamespace(address="a:1", hands_over_at=hands_over_at, left=left, leave=lambda: left.append(True))


@pytest.mark.parametrize(
    ("hands_over_in_s", "others", "expected"),
    [
        (None, [ROOMY], False),  # it does not drain
        (60.0, [ROOMY], False),  # the session may still end there
        (-1.0, [ROOMY], True),
        (-1.0, [UNKNOWN], True),  # nobody told how full it is: it says so itself
        (-1.0, [], False),
        (-1.0, [Candidate("b:1", free_tokens=99)], False),
        (-1.0, [Candidate("b:1", free_tokens=100, draining=True)], False),
        (-1.0, [Candidate("b:1", free_tokens=99), ROOMY], True),
    ],
)
def test_a_session_moves_after_half_the_grace_if_another_has_room(
    hands_over_in_s: float | None, others: list[Candidate], expected: bool
) -> None:
    at = None if hands_over_in_s is None else time.monotonic() + hands_over_in_s
    assert hands_over(link(at), others, 100) is expected


@pytest.mark.parametrize(
    ("drains", "others", "expected"),
    [
        (False, [ROOMY], False),
        (True, [ROOMY], True),  # no part of the grace is waited for
        (True, [UNKNOWN], True),
        (True, [], False),
        (True, [Candidate("b:1", free_tokens=99)], False),
        (True, [Candidate("b:1", free_tokens=100, draining=True)], False),
    ],
)
def test_a_session_leaves_a_draft_that_drains_at_once(drains: bool, others: list[Candidate], expected: bool) -> None:
    assert moves_at_once(link(time.monotonic() + 60.0 if drains else None), others, 100) is expected


def test_a_coordinator_leaves_with_its_last_session() -> None:
    placements, draining, staying = Placements("me"), link(time.monotonic()), link(None)
    placements.add(1, Placement("one", "a:1", 10))
    leave_if_idle(draining, placements)
    assert not draining.left
    placements.remove(1, "a:1")
    leave_if_idle(staying, placements)
    leave_if_idle(draining, placements)
    assert draining.left == [True]
    assert not staying.left
