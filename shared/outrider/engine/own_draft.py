"""A verifier's draft of its own: guesses on the verifier's device thread, between its passes.

Where draft and target share a device, a round that goes through the coordinator leaves the device idle on every hop,
and two processes would compute at once and both more slowly. Here one thread does both in turns, and all sessions whose
rounds end together are drafted for together and verified together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal
from outrider.engine.chains import Ahead, ChainsUnderWay
from outrider.engine.draft import DraftCore
from outrider.engine.drawn import Drawn
from outrider.engine.guess import DraftSession, Guess
from outrider.engine.sessions import ItemRefused, ReplicaPeer, Reply, Request, Session
from outrider.engine.worker import DeviceWorker, Peer
from outrider.errors import ResourceExhausted
from outrider.protocol.items import Close, Drafted, DraftFirst, Failed, FailureCode, Open
from outrider.sampling.plain import is_plain
from outrider.sampling.verify import VerifyRows
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

RETRY_S = 1.0
"""Pause after a failure before a session is opened on the draft again."""

Target = Session[VerifyRows]


class OwnGuess(NamedTuple):
    """What the draft says for a session's round."""

    session: Target
    proposal: Proposal  # empty where the draft has nothing


class _Held(Peer[Request, Reply]):
    """A session of the verifier, as the draft has it: a peer with one session."""

    def __init__(self, worker: DeviceWorker[Request, Reply], session: Target, opening: Open) -> None:
        super().__init__(worker, session.peer.name, lambda replies: None, session.peer.vocabulary_size)
        self.session = session
        self.opening = opening  # as the verifier got it, without the tokens
        self.draft: DraftSession | None = None  # None: it is not open there, or not any more
        self.known = 0  # committed tokens that the draft was told of; 0: it was told of none
        self.next_try = 0.0
        self.asked = 0  # how many were committed before the guess under way; 0: none is wanted


class OwnDraft:
    """Runs a `DraftCore` for the sessions of one verifier, as its only client. Everything on the device thread."""

    def __init__(self, core: DraftCore, clock: Callable[[], float] = time.monotonic) -> None:
        self.core = core
        self._clock = clock
        self._worker = DeviceWorker(core)  # the peers'; it is never started, the verifier's thread runs the core
        self._held: dict[Target, _Held] = {}
        core.sessions.on_remove = _lose

    def claim_thread(self) -> None:
        """See `outrider.engine.worker.Core`."""
        self.core.claim_thread()

    @property
    def busy(self) -> bool:
        """True while a pass is wanted."""
        return self.core.busy

    @property
    def prompt_rows(self) -> int:
        """Rows of prompts in the last pass."""
        return self.core.prompt_rows

    def took_s(self) -> float | None:
        """Seconds of the device that the last pass took, if that is known."""
        return self.core.span.seconds()

    def expect(self, session: Target, opening: Open) -> None:
        """The verifier has opened a session; it is opened here when the first guess is asked for."""
        self._held[session] = _Held(self._worker, session, replace(opening, tokens=()))

    def forget(self, session: Target) -> None:
        """The verifier has closed it."""
        if held := self._held.pop(session, None):
            self._close(held)

    def expire(self, now: float) -> None:
        """See `outrider.engine.worker.Core`."""
        self.core.expire(now)

    def others_wait(self, drafts: Sequence[DraftSession]) -> bool:
        """True if a session that is none of these wants a pass too."""
        those = set(drafts)
        return not all(each in those for each in self.core.sessions.waiting())

    def asked_for(self, draft: DraftSession) -> Target | None:
        """The verifier's session that waits for what is guessed in `draft`, if it does."""
        held = draft.peer
        return held.session if isinstance(held, _Held) and held.asked == len(held.session.history) else None

    def cancel(self, session: Target) -> None:
        """Whatever is under way for the session, its result is wanted no more."""
        if held := self._held.get(session):
            held.asked = 0

    def ask(self, session: Target, wanted: DraftFirst) -> OwnGuess | None:
        """Begin to guess after the session's history. None: it comes from `step`. Raise ItemRefused for a bad wish."""
        held = self._held[session]
        if held.known == 0 and not self._open(held):
            return OwnGuess(session, NO_PROPOSAL)
        history, known = session.history, held.known
        held.asked = held.known = len(history)
        if held.draft is None or known > len(history):
            reply: Reply | None = Failed(session.key, FailureCode.UNKNOWN_SESSION, "the draft has lost its history")
        else:
            reply = self.core.guess_on(held.draft, history[known:], wanted)
        if isinstance(reply, Failed) and reply.code is FailureCode.INVALID_ARGUMENT:
            raise ItemRefused(reply.code, reply.message)
        return None if reply is None else self._take(held, reply)

    @property
    def draws_apart(self) -> bool:
        """True if all who wait can be drafted for without the host between."""
        return self.core.engine.takes_drawn and all(
            is_plain(each.sampling) and (each.work is None or each.work.draws_apart)
            for each in self.core.sessions.waiting()
        )

    def ready(self, session: Target, verified: int, length: int) -> bool:
        """Whether it could guess so many tokens before it is known what stands of the `verified` ones.

        After a plain round it needs not even know the session yet.
        """
        held, base = self._held[session], len(session.history)
        if (draft := held.draft) is None:
            return not verified and held.known == 0 and self._clock() >= held.next_try
        if draft.work is not None or length > draft.sequence.max_length - (base + verified):
            return False
        if not verified:
            return held.known <= base
        return held.known == base and len(draft.sequence.cached) >= base + verified - 1

    def hold(self, session: Target, verified: int, length: int) -> DraftSession | None:
        """The session of who is `ready`, told of all that is committed; its cache claims nothing beyond that.

        What stands there of guessed tokens is left as it is. None if it could not be, or it cannot be told.
        """
        held = self._held[session]
        if held.known == 0 and not self._open(held):
            return None
        draft, base = held.draft, len(session.history)
        assert draft is not None
        sequence = draft.sequence
        table = sequence.table
        try:
            if verified:
                sequence.cut(base - 1)
            else:
                self.core.sessions.go_on(draft, session.history[held.known :])
                held.known = base
        except (ItemRefused, ResourceExhausted) as error:
            log.debug("session %d is not drafted for ahead: %s", session.number, error)
            return None
        fits = length <= sequence.max_length - (base + verified)
        return draft if fits and (sequence.table is table or not verified) else None

    def draft_ahead(self, feeds: Ahead, guesses: Mapping[DraftSession, Guess], drawn: Drawn) -> ChainsUnderWay | None:
        """See `DraftCore.draft_ahead`."""
        return self.core.draft_ahead(feeds, guesses, drawn)

    def follow(self, session: Target, guess: Guess) -> None:
        """The outcome after which `guess` is under way is the session's history now."""
        held, history = self._held[session], session.history
        known, held.known = held.known, len(history)
        if held.draft is None:
            return  # what it has to say is lost, and found to be when it is asked again
        failed = self.core.follow(held.draft, history[known:], guess)
        if isinstance(failed, Failed):
            self._fail(held, failed)
        else:
            held.asked = len(history)

    def take(self, chains: ChainsUnderWay) -> list[OwnGuess]:
        """Wait for guesses that were begun ahead; those that are still wanted. Raises where the device is lost."""
        try:
            return self._taken(self.core.take_chains(chains))
        except Exception as error:
            log.exception("guesses of %d sessions failed", len(chains.sessions))
            self.core.engine.check_device()
            begun = [one for one, guess in zip(chains.sessions, chains.guesses, strict=True) if one.work is guess]
            return self._taken([self.core.fail(one, error) for one in begun if one in self.core.sessions])

    def step(self, meanwhile: Callable[[], None]) -> list[OwnGuess]:
        """One pass; the guesses that are done. `meanwhile`: see `outrider.engine.worker.Core`."""
        return self._taken(self.core.step(meanwhile))

    def _taken(self, replies: Sequence[tuple[ReplicaPeer, Reply]]) -> list[OwnGuess]:
        guesses: list[OwnGuess] = []
        for peer, reply in replies:
            assert isinstance(peer, _Held)
            if guess := self._take(peer, reply):
                guesses.append(guess)
        return guesses

    def _take(self, held: _Held, reply: Reply) -> OwnGuess | None:
        """The guess that a reply of the draft is, if anybody still waits for it."""
        base, session = reply.key.base_length, held.session
        if held.asked != base:
            return None
        held.asked = 0
        if base != len(session.history):  # it has moved on meanwhile
            return None
        if isinstance(reply, Drafted):
            return OwnGuess(session, reply.proposal)
        if isinstance(reply, Failed):
            self._fail(held, reply)
        return OwnGuess(session, NO_PROPOSAL)

    def _open(self, held: _Held) -> bool:
        if self._clock() < held.next_try:
            return False
        session = held.session
        opening = replace(
            held.opening, key=session.key, tokens=tuple(session.history), max_length=session.sequence.max_length
        )
        reply = self.core.handle(held, opening)
        if isinstance(reply, Failed):
            self._fail(held, reply)
            return False
        held.draft = self.core.sessions.find(held, opening.key)
        held.known = len(session.history)
        return True

    def _fail(self, held: _Held, reply: Failed) -> None:
        log.warning("session %d goes on without its draft: %s", held.session.number, reply.message)
        self._close(held)
        outgrown = reply.code is FailureCode.CONTEXT_LENGTH
        lost = reply.code is FailureCode.UNKNOWN_SESSION  # its lease had run out: it can come back at once
        held.next_try = float("inf") if outgrown else self._clock() + (0.0 if lost else RETRY_S)

    def _close(self, held: _Held) -> None:
        if held.draft is not None:
            self.core.handle(held, Close(held.draft.key))
        held.known = 0


def _lose(draft: DraftSession) -> None:
    """The draft has freed a session: closed, failed, or its lease ran out."""
    if isinstance(draft.peer, _Held):  # else one of those that it is timed with at the start
        draft.peer.draft = None
