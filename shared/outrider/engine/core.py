"""What the verifier's and the draft's device thread have in common: item dispatch, error mapping, one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from outrider.engine.batch import Feed
from outrider.engine.drawn import Drawn
from outrider.engine.engine import Engine
from outrider.engine.laps import Laps
from outrider.engine.schedule import Demand, schedule
from outrider.engine.sessions import ItemRefused, ReplicaPeer, Reply, Request, Session, SessionTable
from outrider.engine.worker import nothing
from outrider.errors import InvalidArgument, ResourceExhausted
from outrider.protocol.items import (
    Advance,
    Close,
    Closed,
    DraftAhead,
    Failed,
    FailureCode,
    FollowUp,
    Key,
    Open,
    Opened,
    Propose,
    Verify,
)
from outrider.sampling.distribution import UnusableLogits
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

Work = TypeVar("Work")


class Launched(NamedTuple, Generic[Work]):
    """A pass on its way."""

    sessions: list[Session[Work]]
    finishing: list[Session[Work]]  # those whose rounds end with it
    feeds: list[Feed]  # their last ones, which have the rows of the logits
    works: list[Work]  # their rounds
    rows: int  # of all sessions
    prompt_rows: int  # of prompts among them
    logits: torch.Tensor | Exception  # [rows of the feeds, width], or what went wrong


class ReplicaCore(ABC, Generic[Work]):
    """Sessions on one engine. Subclasses say what a round is; this class runs everybody's rounds together.

    A round of a session: run the committed tokens whose KV is missing and, with the last of them, the subclass's
    proposed tokens; then the subclass finishes the round from the logits. Prefill is the same thing with more tokens.
    """

    own_draft: ReplicaCore[Any] | None = None  # a verifier's: then it can be told to draft first

    def __init__(self, engine: Engine, *, max_proposal: int, lease_s: float) -> None:
        """`max_proposal`: most proposed tokens in a round. `lease_s`: seconds after which a silent session is freed."""
        assert engine.options.max_batch_tokens > max_proposal
        self.engine = engine
        self.max_proposal = max_proposal
        self.pass_rows = 0
        """Rows of the pass that is being finished, or was last: those of prompts too."""
        self.prompt_rows = 0
        """Those of prompts among them."""
        self.sessions: SessionTable[Work] = SessionTable(engine, lease_s=lease_s)
        self.laps = Laps()
        self._meanwhile: Callable[[], None] = nothing  # of the step in progress, until it is called

    # Subclasses

    @abstractmethod
    def start_round(self, session: Session[Work], item: Verify | Propose | DraftAhead) -> Reply | None:
        """Begin the round an item asks for, by setting `session.work`; or reply at once. Raise on a bad item."""

    def follow_up(self, session: Session[Work], item: FollowUp) -> Reply | None:
        """Take in what to do after a round. Raises InvalidArgument where rounds are not followed up."""
        raise InvalidArgument("event", "follow_up", "an item for a verifier")

    @abstractmethod
    def demand(self, session: Session[Work]) -> Demand:
        """What the session has to run before its logits are complete."""

    @abstractmethod
    def last_feed(self, session: Session[Work]) -> Feed:
        """The feed that completes the session's logits."""

    @abstractmethod
    def finish_step(
        self, sessions: Sequence[Session[Work]], works: Sequence[Work], logits: torch.Tensor
    ) -> list[tuple[ReplicaPeer, Reply]]:
        """Use the logits [rows, width] of the sessions' last feeds; the replies of the rounds that are done.

        `works`: the sessions' rounds when the pass began. Calls `overlap` before it waits for the device. Raises
        UnusableLogits before it changes anything.
        """

    # The device thread's interface (`outrider.engine.worker.Core`)

    def claim_thread(self) -> None:
        """Make the engine's device this thread's."""
        self.engine.claim_thread()

    @property
    def busy(self) -> bool:
        """True while a session waits for a forward pass."""
        return next(self.sessions.waiting(), None) is not None

    @property
    def awaited(self) -> bool:
        """See `Core`."""
        return self.busy

    def handle(self, peer: ReplicaPeer, item: Request) -> Reply | None:
        """Take one item. Whatever is wrong with it stays with its session."""
        try:
            return self._dispatch(peer, item)
        except Exception as error:
            return self.refusal(item.key, error)

    def resume(self) -> None:
        """See `Core`."""
        self.laps.restart()

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[ReplicaPeer, Reply]]:
        """One forward pass over the sessions that are ready; see `Core`."""
        self._meanwhile = meanwhile
        return self.complete(self.launch())

    def launch(self, drawn: Drawn | None = None, without: Container[Session[Work]] = ()) -> Launched[Work]:
        """Begin a pass over the sessions that are ready, `without` some. `drawn`: see `Engine.forward`."""
        ready = [session for session in self.sessions.waiting() if session not in without]
        demands = [self.demand(session) for session in ready]
        grants = schedule(demands, budget=self.engine.options.max_batch_tokens, decode_limit=self.max_proposal + 1)
        granted = [
            (session, grant, session.work is not None and grant == demand.chain)
            for session, demand, grant in zip(ready, demands, grants, strict=True)
            if grant
        ]
        sessions = [session for session, _, _ in granted]
        finishing = [session for session, _, completes in granted if completes]
        works = [session.work for session in finishing if session.work is not None]
        rows = prompt_rows = 0
        try:
            feeds = [
                self.last_feed(session) if completes else _part(session, grant) for session, grant, completes in granted
            ]
            sizes = [feed.size for feed in feeds]
            rows, prompt_rows = sum(sizes), sum(size for size in sizes if size > self.max_proposal + 1)
            if not self.engine.computes_apart:
                self.overlap()
            logits = self.engine.forward(feeds, drawn)
        except Exception as error:
            return Launched(sessions, [], [], [], rows, prompt_rows, error)
        wanted = [feed for feed in feeds if feed.want_logits]
        return Launched(sessions, finishing, wanted, works, rows, prompt_rows, logits)

    def complete(self, launched: Launched[Work]) -> list[tuple[ReplicaPeer, Reply]]:
        """Finish a pass; the replies of the rounds that are done. Raises where the device is lost: see `Engine`."""
        self.pass_rows, self.prompt_rows = launched.rows, launched.prompt_rows
        try:
            if isinstance(launched.logits, Exception):
                raise launched.logits
            return self._finish(launched.finishing, launched.works, launched.feeds, launched.logits)
        except Exception as error:
            return self.fail_all(launched.sessions, error)

    def fail_all(self, sessions: Sequence[Session[Work]], error: Exception) -> list[tuple[ReplicaPeer, Reply]]:
        """Close all sessions of a step that failed, where `error` is handled. Raises where the device is lost."""
        log.exception("a step of %d sessions failed", len(sessions))
        self.engine.check_device()
        self.laps.restart()
        return [self.fail(session, error) for session in sessions if session in self.sessions]

    def drop_peer(self, peer: ReplicaPeer) -> None:
        """Free the sessions of a stream that ended."""
        self.sessions.remove_peer(peer)

    def expire(self, now: float) -> None:
        """Free the sessions whose lease ran out."""
        self.sessions.expire(now)

    # Inside

    def refusal(self, key: Key, error: Exception) -> Failed:
        """The reply to an item that raised `error`."""
        if isinstance(error, ItemRefused):
            return Failed(key, error.code, str(error))
        if isinstance(error, InvalidArgument):
            return Failed(key, FailureCode.INVALID_ARGUMENT, str(error))
        if isinstance(error, ResourceExhausted):
            return Failed(key, FailureCode.RESOURCE_EXHAUSTED, str(error))
        log.error("session %d: item failed", key.session, exc_info=error)
        return Failed(key, FailureCode.INTERNAL, repr(error))

    def overlap(self) -> None:
        """Everything that the step wants computed is under way: call its `meanwhile`, if that has not been done."""
        meanwhile, self._meanwhile = self._meanwhile, nothing
        meanwhile()

    def _finish(
        self,
        sessions: Sequence[Session[Work]],
        works: Sequence[Work],
        feeds: Sequence[Feed],
        logits: torch.Tensor,
    ) -> list[tuple[ReplicaPeer, Reply]]:
        """Finish the sessions' rounds, `works`; logits that allow no token (NaN) fail their own session only.

        `feeds`: the sessions' last ones, which have the rows of `logits`.
        """
        if not sessions:
            self.overlap()
            self.laps.lap()  # prompts' own
            return []
        try:
            return self.finish_step(sessions, works, logits)
        except UnusableLogits as error:
            pieces = torch.split(logits, [feed.logit_rows for feed in feeds])
            good = [entry for entry in range(len(sessions)) if entry not in error.entries]
            bad = [sessions[entry] for entry in error.entries]
            replies = [self.fail(session, error) for session in bad if session in self.sessions]
            if good:
                rows = torch.cat([pieces[entry] for entry in good])
                left = [feeds[entry] for entry in good]
                replies += self._finish(
                    [sessions[entry] for entry in good], [works[entry] for entry in good], left, rows
                )
            return replies

    def _dispatch(self, peer: ReplicaPeer, item: Request) -> Reply | None:
        match item:
            case Open():
                return self.open(peer, item)
            case Close():
                session = self.sessions.find(peer, item.key)
                if item.keep_s > 0:
                    session.sequence.keep(item.keep_s)
                self.sessions.remove(session)
                return Closed(item.key)
            case Advance():
                session = self.sessions.find(peer, item.key)
                session.work = None  # a round in progress was for the old history
                self.sessions.advance(session, item)
                return None
            case FollowUp():
                return self.follow_up(self.sessions.find(peer, item.key), item)
            case _:
                session = self.sessions.find(peer, item.key)
                session.work = None  # the newest round wins
                self.sessions.advance(session, item)
                return self.start_round(session, item)

    def open(self, peer: ReplicaPeer, item: Open) -> Opened:
        """Open or re-open a session. Raises what `SessionTable.open` does."""
        context = self.engine.info.context_length
        if len(item.tokens) >= context:
            raise ItemRefused(
                FailureCode.CONTEXT_LENGTH, f"{len(item.tokens)} tokens leave no room in a context of {context}"
            )
        _, cached = self.sessions.open(peer, item, max_length=min(item.max_length, context))
        return Opened(item.key, cached)

    def fail(self, session: Session[Work], error: Exception) -> tuple[ReplicaPeer, Reply]:
        """Close a session whose KV cannot be trusted; the coordinator comes back with the committed tokens."""
        self.sessions.remove(session)
        return session.peer, Failed(session.key, FailureCode.INTERNAL, f"the step failed: {error!r}")


def _part(session: Session[Work], grant: int) -> Feed:
    start = len(session.sequence.cached)
    return Feed(session.sequence, session.history[start : start + grant], want_logits=False)
