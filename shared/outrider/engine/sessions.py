"""The sessions of a replica, on the device thread: open, advance, close, leases. Verifier and draft share it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from outrider.acceptance.proposal import Proposal, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.engine.engine import Engine
from outrider.engine.sequence import KvSequence
from outrider.engine.worker import Peer
from outrider.errors import InvalidArgument, ResourceExhausted
from outrider.protocol.items import (
    Advance,
    Close,
    Closed,
    DraftAhead,
    Drafted,
    DraftedAhead,
    Failed,
    FailureCode,
    FollowUp,
    Key,
    Open,
    Opened,
    Propose,
    Verified,
    Verify,
)
from outrider.sampling.state import SamplingState
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

Request = Open | Advance | Verify | FollowUp | Propose | DraftAhead | Close
Reply = Opened | Closed | Verified | Drafted | DraftedAhead | Failed
ReplicaPeer = Peer[Request, Reply]
Work = TypeVar("Work")


class ItemRefused(Exception):
    """One item cannot be served; its stream and the other sessions go on."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True, eq=False)
class Session(Generic[Work]):
    """One generation's device state. `history` is the committed tokens; everything else can be rebuilt from it."""

    peer: ReplicaPeer
    number: int
    epoch: int
    sequence: KvSequence
    sampling: SamplingState
    history: list[int]
    last_used: float  # time.monotonic seconds
    work: Work | None = None  # the round in progress
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    foresaw: Work | None = None  # a draft's last round that foresaw outcomes, while `history` goes on from its base
    judged: tuple[Proposal, Verdict] | None = None  # the round that ended last, while `history` is still its base
    orders: tuple[FollowUp, ...] = ()  # what to do when the round in progress has ended, then what follows that
    freed: bool = False
    ordered_at: int | None = None  # base length of the first order, which the others extend; None: there was none

    @property
    def key(self) -> Key:
        """The key of a reply made now."""
        return Key(self.number, self.epoch, len(self.history))

    @property
    def uncomputed(self) -> int:
        """Committed tokens whose KV is still missing."""
        return len(self.history) - len(self.sequence.cached)


class SessionTable(Generic[Work]):
    """All sessions, by peer and number, oldest first."""

    def __init__(self, engine: Engine, *, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`lease_s`: a session that no item has named for so many seconds is freed."""
        self._engine = engine
        self._lease_s = lease_s
        self._clock = clock
        self._sessions: dict[tuple[ReplicaPeer, int], Session[Work]] = {}
        self.on_remove: Callable[[Session[Work]], None] = lambda session: None  # called for each that is freed

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session[Work]]:
        return iter(self._sessions.values())

    def __contains__(self, session: Session[Work]) -> bool:
        """False once it has been freed."""
        return not session.freed

    def waiting(self) -> Iterator[Session[Work]]:
        """Those that want a forward pass. Without a round to finish, all but the last token is run ahead of it."""
        for session in self._sessions.values():
            if session.work is not None or len(session.history) - len(session.sequence.cached) > 1:
                yield session

    def count_by_peer(self) -> Counter[str]:
        """How many sessions each stream has, by the stream's name. May be called on any thread."""
        return Counter(peer.name for peer, _ in list(self._sessions))

    def open(self, peer: ReplicaPeer, item: Open, *, max_length: int) -> tuple[Session[Work], int]:
        """Open or re-open; the session and how many of its tokens came from the prefix cache.

        Raise InvalidArgument for what no coordinator may send, ItemRefused for a stale epoch, ResourceExhausted when
        the blocks do not suffice.
        """
        validate_open(item)
        sampling = SamplingState.open(item, peer.vocabulary_size, self._engine.device)
        key = item.key
        if (known := self._sessions.get((peer, key.session))) is not None:
            if key.epoch <= known.epoch:
                raise ItemRefused(FailureCode.STALE_EPOCH, f"epoch {key.epoch} is not after {known.epoch}")
            self.remove(known)
        sequence = self._engine.open(item.tokens, max_length, item.cache_salt)
        session = Session[Work](
            peer=peer,
            number=key.session,
            epoch=key.epoch,
            sequence=sequence,
            sampling=sampling,
            history=list(item.tokens),
            last_used=self._clock(),
            stop_token_ids=frozenset(item.stop_token_ids),
        )
        self._sessions[peer, key.session] = session
        return session, len(sequence.cached)

    def find(self, peer: ReplicaPeer, key: Key) -> Session[Work]:
        """The open session a key names, its lease renewed. Raise ItemRefused if it is unknown or of another epoch."""
        session = self._sessions.get((peer, key.session))
        if session is None:
            raise ItemRefused(FailureCode.UNKNOWN_SESSION, f"session {key.session} is not open here")
        if key.epoch != session.epoch:
            raise ItemRefused(FailureCode.STALE_EPOCH, f"epoch {key.epoch} is not the current {session.epoch}")
        session.last_used = self._clock()
        return session

    def advance(self, session: Session[Work], item: Advance | Verify | Propose | DraftAhead) -> None:
        """Move the committed history, and roll the KV back to what still holds. Raise ItemRefused, InvalidArgument."""
        length, base = len(session.history), item.key.base_length
        if item.keep > length or item.keep + len(item.append) != base or base == 0:
            raise ItemRefused(
                FailureCode.BASE_LENGTH,
                f"keep {item.keep} of {length} and append {len(item.append)} does not give base length {base}",
            )
        if base > session.sequence.max_length:
            raise _no_room(session, base)
        session.judged, session.orders, session.ordered_at = None, (), None
        if item.keep < length:
            session.foresaw = None
        session.sampling.advance(item.keep, item.append)
        del session.history[item.keep :]
        session.history.extend(item.append)
        self._align(session, item.keep, item.in_flight if isinstance(item, DraftAhead) else None)

    def go_on(self, session: Session[Work], tokens: Sequence[int], path: Sequence[int] | None = None) -> None:
        """What `advance` does with all that is committed and then `tokens`, which are known to be of the vocabulary.

        But orders stand: the round that follows may be by one of them.

        `path`: the nodes in flight that stand for all of them but the last, where that is known too. Raise ItemRefused,
        ResourceExhausted.
        """
        known = len(session.history)
        if known + len(tokens) > session.sequence.max_length:
            raise _no_room(session, known + len(tokens))
        session.last_used = self._clock()
        session.judged = None
        session.sampling.go_on(tokens)
        session.history.extend(tokens)
        if path is None:
            self._align(session, known)
        else:
            session.sequence.accept(path)

    def _align(self, session: Session[Work], keep: int, in_flight: TokenTree | None = None) -> None:
        """Roll the KV back to what still holds; the first `keep` tokens do. A chain that goes on in flight stays."""
        chain = in_flight.tokens if in_flight is not None and in_flight.is_chain else None
        try:
            session.sequence.align(session.history, min(keep, len(session.sequence.cached)), chain)
        except ResourceExhausted:
            self.remove(session)  # history and KV no longer agree; the coordinator comes back with the whole history
            raise

    def remove(self, session: Session[Work]) -> None:
        """Free the session; its full blocks stay in the prefix cache."""
        session.freed = True
        self._engine.close(session.sequence)
        del self._sessions[session.peer, session.number]
        self.on_remove(session)

    def remove_peer(self, peer: ReplicaPeer) -> None:
        """Free all sessions of a stream that ended."""
        for session in [session for session in self if session.peer is peer]:
            self.remove(session)

    def expire(self, now: float) -> None:
        """Free the sessions whose lease ran out."""
        for session in [session for session in self if now - session.last_used > self._lease_s]:
            if session.work is None:
                log.warning("session %d of %s: lease of %g s ran out", session.number, session.peer.name, self._lease_s)
                self.remove(session)


def _no_room(session: Session[Work], base: int) -> ItemRefused:
    most = session.sequence.max_length
    return ItemRefused(FailureCode.CONTEXT_LENGTH, f"{base} tokens are more than max_length, {most}")


def validate_open(item: Open) -> None:
    """Raise InvalidArgument naming the first length that does not fit; `SamplingState.open` checks the rest."""
    if item.key.base_length != len(item.tokens):
        raise InvalidArgument("base_length", item.key.base_length, f"the number of tokens, {len(item.tokens)}")
    if item.max_length < len(item.tokens):
        raise InvalidArgument("open.max_length", item.max_length, f"at least the number of tokens, {len(item.tokens)}")
