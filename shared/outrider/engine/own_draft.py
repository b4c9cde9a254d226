"""A verifier's draft of its own: guesses on the verifier's device thread, between its passes.

Where draft and target share a device, a round that goes through the coordinator leaves the device idle on every hop,
and two processes would compute at once and both more slowly. Here one thread does both in turns, and all sessions whose
rounds end together are drafted for together and verified together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal
from outrider.engine.draft import DraftCore
from outrider.engine.sessions import ItemRefused, ReplicaPeer, Reply, Session
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import Close, Drafted, DraftFirst, Failed, FailureCode, Key, Open, Propose
from outrider.sampling.verify import VerifyRows
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

RETRY_S = 1.0
"""Pause after a failure before a session is opened on the draft again."""

Target = Session[VerifyRows]


@dataclass(frozen=True, slots=True)
class OwnGuess:
    """What the draft says for a session's round."""

    session: Target
    proposal: Proposal  # empty where the draft has nothing


@dataclass(slots=True)
class _Held:
    """A session of the verifier, as the draft has it."""

    session: Target
    opening: Open  # as the verifier got it, without the tokens
    known: int = 0  # committed tokens that the draft was told of; 0: it is not open there
    next_try: float = 0.0
    asked: Key | None = None  # the guess under way


class OwnDraft:
    """Runs a `DraftCore` for the sessions of one verifier, as its only client. Everything on the device thread."""

    def __init__(self, core: DraftCore, clock: Callable[[], float] = time.monotonic) -> None:
        self.core = core
        self._clock = clock
        self._worker = DeviceWorker(core)  # makes peers; it is never started, the verifier's thread runs the core
        self._peers: dict[ReplicaPeer, ReplicaPeer] = {}  # by the verifier's
        self._held: dict[tuple[ReplicaPeer, int], _Held] = {}  # by the draft's peer and the session's number

    def claim_thread(self) -> None:
        """See `outrider.engine.worker.Core`."""
        self.core.claim_thread()

    @property
    def busy(self) -> bool:
        """True while a pass is wanted."""
        return self.core.busy

    def expect(self, session: Target, opening: Open) -> None:
        """The verifier has opened a session; it is opened here when the first guess is asked for."""
        self._held[self._place(session)] = _Held(session, replace(opening, tokens=()))

    def forget(self, session: Target) -> None:
        """The verifier has closed it."""
        place = self._place(session)
        held = self._held.get(place)
        if held is not None and held.session is session:
            del self._held[place]
            self._close(place, held)

    def drop_peer(self, peer: ReplicaPeer) -> None:
        """The verifier's peer is gone, and its sessions with it."""
        self._peers.pop(peer, None)

    def expire(self, now: float) -> None:
        """See `outrider.engine.worker.Core`."""
        self.core.expire(now)

    def cancel(self, session: Target) -> None:
        """Whatever is under way for the session, its result is wanted no more."""
        if held := self._held.get(self._place(session)):
            held.asked = None

    def ask(self, session: Target, wanted: DraftFirst) -> OwnGuess | None:
        """Begin to guess after the session's history. None: it comes from `step`. Raise ItemRefused for a bad wish."""
        place = self._place(session)
        held = self._held[place]
        key = session.key
        if held.known == 0 and not self._open(place, held, session):
            return OwnGuess(session, NO_PROPOSAL)
        held.asked = key
        append = tuple(session.history[held.known :])
        item = Propose(key, held.known, append, wanted.max_tokens, wanted.siblings)
        held.known = len(session.history)
        reply = self.core.handle(place[0], item)
        if isinstance(reply, Failed) and reply.code is FailureCode.INVALID_ARGUMENT:
            raise ItemRefused(reply.code, reply.message)
        return None if reply is None else self._take(place, reply)

    def step(self, meanwhile: Callable[[], None]) -> list[OwnGuess]:
        """One pass; the guesses that are done. `meanwhile`: see `outrider.engine.worker.Core`."""
        found = [self._take((peer, reply.key.session), reply) for peer, reply in self.core.step(meanwhile)]
        return [guess for guess in found if guess is not None]

    def _take(self, place: tuple[ReplicaPeer, int], reply: Reply) -> OwnGuess | None:
        """The guess that a reply of the draft is, if anybody still waits for it."""
        held = self._held.get(place)
        if held is None or held.asked != reply.key:
            return None
        held.asked = None
        if reply.key != held.session.key:  # its history has moved on meanwhile
            return None
        proposal = NO_PROPOSAL
        if isinstance(reply, Drafted):
            proposal = reply.proposal
        elif isinstance(reply, Failed):
            self._fail(place, held, reply)
        return OwnGuess(held.session, proposal)

    def _open(self, place: tuple[ReplicaPeer, int], held: _Held, session: Target) -> bool:
        if self._clock() < held.next_try:
            return False
        opening = replace(
            held.opening, key=session.key, tokens=tuple(session.history), max_length=session.sequence.max_length
        )
        reply = self.core.handle(place[0], opening)
        if isinstance(reply, Failed):
            self._fail(place, held, reply)
            return False
        held.known = len(session.history)
        return True

    def _fail(self, place: tuple[ReplicaPeer, int], held: _Held, reply: Failed) -> None:
        log.warning("session %d goes on without its draft: %s", place[1], reply.message)
        self._close(place, held)
        outgrown = reply.code is FailureCode.CONTEXT_LENGTH
        lost = reply.code is FailureCode.UNKNOWN_SESSION  # its lease had run out: it can come back at once
        held.next_try = float("inf") if outgrown else self._clock() + (0.0 if lost else RETRY_S)

    def _close(self, place: tuple[ReplicaPeer, int], held: _Held) -> None:
        if held.known:
            self.core.handle(place[0], Close(Key(place[1], held.opening.key.epoch, held.known)))
            held.known = 0

    def _place(self, session: Target) -> tuple[ReplicaPeer, int]:
        peer = self._peers.get(session.peer)
        if peer is None:
            peer = self._peers[session.peer] = self._worker.connect(
                session.peer.name, lambda replies: None, vocabulary_size=session.peer.vocabulary_size
            )
        return peer, session.number
