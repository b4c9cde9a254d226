"""Takes guesses and branches as far as all of them want, without the host between tokens, where that can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from outrider.engine.engine import Engine
from outrider.engine.foresight import Foresight
from outrider.engine.guess import Drafting, DraftSession
from outrider.engine.runner import Chains, DrawingChains
from outrider.engine.sessions import ReplicaPeer, Reply
from outrider.protocol.items import DraftedAhead
from outrider.sampling.distribution import UnusableLogits
from outrider.sampling.plain import MOST_BESIDE, is_plain


class _More(NamedTuple):
    """A step beyond what was wanted, for which nobody waits, under way."""

    session: DraftSession
    work: Foresight
    drawing: DrawingChains


class Grower:
    """The draft's passes over what grows on the device."""

    def __init__(self, engine: Engine, fail: Callable[[DraftSession, Exception], tuple[ReplicaPeer, Reply]]) -> None:
        """`fail` closes a session."""
        self._engine = engine
        self._fail = fail
        self._more: _More | None = None

    def grow(self, sessions: Sequence[DraftSession]) -> list[tuple[ReplicaPeer, Reply]]:
        """As many tokens as all of `sessions` want that can grow; the replies of the rounds that are done.

        Sessions in which nothing can be drawn fail; what nobody waits for is given up then, for whoever asks for it
        finds that out. `collect` comes before.
        """
        growing = [(each, each.work) for each in sessions if each.work and each.work.steps_left]
        growing = [its for its in growing if is_plain(its[0].sampling) and its[1].most_siblings <= MOST_BESIDE]
        if not growing:
            return []
        steps = min(work.steps_left for _, work in growing)
        growths = [work.growth(session) for session, work in growing]
        more = all(work.ends_alone(session) for session, work in growing)
        if (grown := self._engine.grow(growths, steps, more=more)) is None:
            stop(session for session, _ in growing)
            return []
        replies: list[tuple[ReplicaPeer, Reply]] = []
        end = 0
        for entry, ((session, work), growth) in enumerate(zip(growing, growths, strict=True)):
            start, end = end, end + len(growth.newest)
            if not _usable(grown.chains, start, end):
                if work.awaited:
                    replies.append(self._fail(session, UnusableLogits([entry])))
                else:
                    session.work = None
                continue
            work.take_grown(session, [row[start:end] for row in grown.chains.ranked], more=more)
            replies += replies_of(session, work)
            if grown.more is not None and isinstance(work, Foresight):
                self._more = _More(session, work, grown.more)
        return replies

    def go_on(self, sessions: Iterable[DraftSession]) -> None:
        """Nobody waits for anything: draft on where that is due."""
        for session in sessions:
            if isinstance(work := session.work, Foresight):
                work.go_on(session)
                if work.is_over(session):
                    session.work = None

    def collect(self) -> None:
        """Take in the step beyond what was wanted, if there is one. Waits for it."""
        if self._more is None:
            return
        (session, work, drawing), self._more = self._more, None
        found = drawing.collected()
        if session.freed or session.work is not work:
            return
        if not _usable(found, 0, None):
            session.work = None
            return
        work.take_more(session, found.ranked[0])
        if work.is_over(session):
            session.work = None


def replies_of(session: DraftSession, work: Drafting) -> list[tuple[ReplicaPeer, Reply]]:
    """The reply, if the work has come so far."""
    reply = work.reply(session)
    if work.is_over(session):
        session.work = None
    if isinstance(reply, DraftedAhead):
        session.foresaw = work
    return [] if reply is None else [(session.peer, reply)]


def stop(sessions: Iterable[DraftSession]) -> None:
    """End the rounds of which only drafting on is left."""
    for session in sessions:
        if isinstance(session.work, Foresight) and session.work.beyond:
            session.work = None


def _usable(chains: Chains, start: int, end: int | None) -> bool:
    return all(math.isfinite(score) for row in chains.scores for score in row[start:end])
