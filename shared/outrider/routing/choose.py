"""Which replica takes a session. Pure decisions over what is known now."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

IMBALANCE = 8
"""So many sessions more than on the emptiest replica are taken for a cached prefix; beyond, it counts no more.

Otherwise all sessions that begin with the same instructions would be on one replica.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that is connected, as its coordinator sees it now."""

    address: str
    sessions: int = 0  # open on it, whoever owns them
    free_tokens: int | None = None  # KV tokens that are left for new sessions; None if nobody told
    cached_tokens: int = 0  # of the session's text, probably
    draining: bool = False
    listed: bool = True  # False once the registry no longer has it, although its stream lives


def choose(
    session: str,
    candidates: Sequence[Candidate],
    *,
    bound_to: str | None = None,
    tokens: int = 0,
    avoid: Collection[str] = (),
) -> str | None:
    """The address for a session that needs room for `tokens`; None if no replica may take it.

    The replica it is bound to, then the longest cached prefix (within `IMBALANCE`), then the fewest sessions, all among
    those with room. A draining replica takes nothing. What speaks against a replica counts only while there is another:
    having just failed this session (`avoid`), having left the registry, being full (by what it last told; it decides
    itself). Equal ones are ordered by a hash of session and address, so that coordinators with the same view do not all
    pick the first.
    """
    usable = [candidate for candidate in candidates if not candidate.draining]
    if bound_to not in avoid and any(candidate.address == bound_to for candidate in usable):
        return bound_to
    usable = _preferably(usable, lambda candidate: candidate.address not in avoid)
    usable = _preferably(usable, lambda candidate: candidate.listed)
    usable = _preferably(usable, lambda candidate: candidate.free_tokens is None or candidate.free_tokens >= tokens)
    most = min((candidate.sessions for candidate in usable), default=0) + IMBALANCE
    best = min(usable, key=lambda candidate: _rank(session, candidate, most), default=None)
    return None if best is None else best.address


def _preferably(candidates: list[Candidate], test: Callable[[Candidate], bool]) -> list[Candidate]:
    return [candidate for candidate in candidates if test(candidate)] or candidates


def _rank(session: str, candidate: Candidate, most_sessions: int) -> tuple[int, int, bytes]:
    tie = hashlib.blake2b(f"{session} {candidate.address}".encode(), digest_size=8).digest()
    cached = candidate.cached_tokens if candidate.sessions <= most_sessions else 0
    return -cached, candidate.sessions, tie
