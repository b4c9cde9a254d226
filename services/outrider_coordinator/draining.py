"""What becomes of our sessions on a replica that drains: they end there, or move on, and then we leave it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from outrider.routing.choose import Candidate
from outrider.rpc.replica_link import ReplicaLink
from outrider_coordinator.placements import Placements

Link = TypeVar("Link", bound=ReplicaLink[Any, Any])


def let_go_when_idle(link: Link, placements: Placements) -> Link:
    """Have a link leave a replica that begins to drain while it has no sessions of ours; returns the link."""
    link.on_drain = lambda: leave_if_idle(link, placements)
    return link


def leave_if_idle(link: ReplicaLink[Any, Any], placements: Placements) -> None:
    """Leave a replica that drains and has no sessions of ours, so that it need not wait for the end of its grace."""
    if link.hands_over_at is not None and not placements.loads()[link.address]:
        link.leave()


def hands_over(link: ReplicaLink[Any, Any], others: Sequence[Candidate], tokens: int) -> bool:
    """True once a session that needs KV for `tokens` should go on at one of the `others`.

    Half of the grace is for sessions to end where they are: moving costs a prefill. What still runs then moves between
    two of its rounds, if another replica has room by what it last told; otherwise it stays until it is cut off.
    """
    if link.hands_over_at is None or time.monotonic() < link.hands_over_at:
        return False
    return _have_room(others, tokens)


def moves_at_once(link: ReplicaLink[Any, Any], others: Sequence[Candidate], tokens: int) -> bool:
    """True if a draft drains and another one is there for a session that needs KV for `tokens`.

    No part of its grace is waited for: while it is opened elsewhere the session only goes without guesses.
    """
    return link.hands_over_at is not None and _have_room(others, tokens)


def _have_room(others: Sequence[Candidate], tokens: int) -> bool:
    return any(not other.draining and (other.free_tokens is None or other.free_tokens >= tokens) for other in others)
