"""What runs on the device thread of a simulated replica: the real protocol, steps that sleep."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.acceptance.accept import accept
from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, Verdict
from outrider.acceptance.step_times import StepTimes
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.acceptance.votes import agreed_depth
from outrider.engine.worker import Peer, nothing
from outrider.protocol.items import (
    NO_STEP,
    Advance,
    Close,
    Closed,
    DraftAhead,
    Drafted,
    DraftedAhead,
    DraftFirst,
    Failed,
    FailureCode,
    FollowUp,
    Foreseen,
    Key,
    Open,
    Opened,
    Propose,
    Step,
    Verified,
    Verify,
)
from tests.benchmarks.simulated.text import Pages, Text

SimulatedPeer = Peer[Any, Any]


@dataclass(slots=True)
class Session:
    """A session of a simulated replica; its text is named by its seed."""

    peer: SimulatedPeer
    key: Key
    seed: int
    pages: Pages
    work: Verify | Propose | DraftAhead | None = None
    steps_left: int = 0
    unread: int = 0  # tokens of its text for which nothing was computed yet
    orders: tuple[FollowUp, ...] = ()
    judged: Verify | None = None  # the verifier's last round, until the next one begins
    drafted: Proposal = NO_PROPOSAL  # what the verifier has drafted by itself for the round in progress
    opened: bool = False  # on the verifier's own draft
    foresaw: DraftedAhead | None = None  # a draft's last, once it has run the pass after it


@dataclass(slots=True)
class StepTime:
    """Milliseconds of one forward pass: `base` and `per_row` for each row beyond the first."""

    base: float
    per_row: float

    def sleep(self, rows: int, started: float) -> None:
        """Wait until the pass that began at `started` (time.perf_counter seconds) is over."""
        sleep_until(started + (self.base + self.per_row * max(rows - 1, 0)) / 1e3)


def sleep_until(end: float) -> None:
    """Return at `end` (time.perf_counter seconds)."""
    if (left := end - time.perf_counter()) > 0:
        time.sleep(left)


@dataclass
class SimulatedCore(ABC):
    """Sessions and their steps; subclasses say how many steps a work takes and what comes of it."""

    text: Text
    step_time: StepTime
    tells: bool = False  # what its passes take, to coordinators
    sessions: dict[tuple[SimulatedPeer, int], Session] = field(default_factory=dict)
    working: dict[tuple[SimulatedPeer, int], Session] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """True while a session has work."""
        return bool(self.working)

    @property
    def awaited(self) -> bool:
        """True while somebody waits for some of it."""
        return bool(self.working)

    @property
    def drafts(self) -> bool:
        """Whether it is a verifier with a draft of its own."""
        return False

    def told(self) -> tuple[StepTimes | None, StepTimes | None]:
        """What it says its passes take, and those of its own draft; None: nothing."""
        if not self.tells:
            return None, None
        base, row = self.step_time.base, self.step_time.per_row
        return StepTimes((1, 512), (base, base + 511 * row)), None

    def handle(self, peer: SimulatedPeer, item: Any) -> Any:
        """Take one item."""
        place = (peer, item.key.session)
        if isinstance(item, Open):
            pages, unread = self.text.pages(item.seed), len(item.tokens) - 1
            self.sessions[place] = Session(peer, item.key, item.seed, pages, unread=unread)
            return Opened(item.key, 0)
        session = self.sessions.get(place)
        if session is None or session.key.epoch != item.key.epoch:
            return Failed(item.key, FailureCode.UNKNOWN_SESSION, "not open here")
        if isinstance(item, FollowUp):
            session.orders = (*session.orders, item) if item.extends else (item,)
            self.follow(session)
            return None
        session.key = item.key
        session.orders, session.judged = (), None
        self.working.pop(place, None)
        if isinstance(item, Close):
            del self.sessions[place]
            return Closed(item.key)
        if not isinstance(item, Advance):
            session.work, session.steps_left = item, self.steps(item, session)
            self.working[place] = session
        return None

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[SimulatedPeer, Any]]:
        """One forward pass over everything that is ready."""
        started = time.perf_counter()
        rows = sum(self.rows(session.work) + session.unread for session in self.working.values())
        for session in self.working.values():
            session.unread = 0
        replies = self.end_rounds()
        meanwhile()
        self.step_time.sleep(rows, started)
        return replies

    def end_rounds(self) -> list[tuple[SimulatedPeer, Any]]:
        """The replies of those that end with this pass; what orders say follows them is begun."""
        replies = []
        for place, session in list(self.working.items()):
            session.steps_left -= 1
            if session.steps_left == 0:
                replies.append((session.peer, self.reply(session)))
                self.end(place)
                self.follow(session)
        return replies

    def end(self, place: tuple[SimulatedPeer, int]) -> None:
        """A work has come to its reply."""
        del self.working[place]

    def follow(self, session: Session) -> None:
        """Begin what an order says should follow a round that has ended; a draft has no orders."""
        assert not session.orders

    def claim_thread(self) -> None:  # noqa: B027 (there is no device)
        """Nothing to claim."""

    def resume(self) -> None:  # noqa: B027
        """Nothing is timed."""

    def drop_peer(self, peer: SimulatedPeer) -> None:
        """The stream ended."""
        for sessions in (self.sessions, self.working):
            for place in [place for place in sessions if place[0] is peer]:
                del sessions[place]

    def expire(self, now: float) -> None:
        """Nothing has a lease here."""
        return

    @abstractmethod
    def steps(self, work: Any, session: Session) -> int:
        """Forward passes that a work takes until its reply."""

    @abstractmethod
    def rows(self, work: Any) -> int:
        """Rows of the work in one pass."""

    @abstractmethod
    def reply(self, session: Session) -> Any:
        """What comes of it."""


@dataclass
class SimulatedVerifier(SimulatedCore):
    """One pass a round, after those of its own draft where it is told to draft first."""

    draft_time: StepTime | None = None  # a token's, for all sessions that draft at once; None: it has no draft
    _told: Step = NO_STEP  # of the pass in progress

    @property
    def drafts(self) -> bool:
        """See SimulatedCore."""
        return self.draft_time is not None

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[SimulatedPeer, Any]]:
        """See SimulatedCore."""
        meanwhile()  # the draft's passes count
        started = time.perf_counter()
        drafting = [session for session in self.working.values() if session.work.draft_first is not None]  # type: ignore[union-attr]
        depth = 0
        if drafting and self.draft_time is not None:
            depth = max(self.draft_for(drafting))
            for _ in range(depth):
                self.draft_time.sleep(len(drafting), time.perf_counter())
        rows = sum(self.rows(session.work) for session in self.working.values())
        microseconds = round((time.perf_counter() - started) * 1e6) if drafting else 0
        self._told = Step(rows, len(self.working), microseconds, depth)
        return super().step()

    def draft_for(self, sessions: Sequence[Session]) -> list[int]:
        """Put their guesses in place; the lengths of those."""
        wanted = [session.work.draft_first for session in sessions if isinstance(session.work, Verify)]
        depth = agreed_depth([each.vote for each in wanted if each is not None and each.vote is not None])
        return [self._draft(session, depth) for session in sessions]

    def _draft(self, session: Session, depth: int) -> int:
        """Its length; `depth`: what was agreed on."""
        assert isinstance(session.work, Verify)
        assert session.work.draft_first is not None
        length, vote = session.work.draft_first.max_tokens, session.work.draft_first.vote
        length = length if vote is None else min(length, depth)
        if not length:
            session.work = replace(session.work, draft_first=None)
            return 0
        chain = TokenTree.chain(session.pages.first_choices(session.key.base_length, length))
        session.drafted = Proposal(chain, Source.MODEL)
        session.work = replace(session.work, proposal=session.drafted, draft_first=None)
        return length

    def steps(self, work: Verify, session: Session) -> int:
        """See SimulatedCore."""
        return 1

    def rows(self, work: Verify) -> int:
        """See SimulatedCore."""
        return 1 + len(work.proposal)

    def reply(self, session: Session) -> Verified:
        """See SimulatedCore."""
        assert isinstance(session.work, Verify)
        session.judged = session.work
        drafted, session.drafted = session.drafted, NO_PROPOSAL
        return Verified(session.key, self._verdict(session, session.work), drafted, self._told)

    def _verdict(self, session: Session, work: Verify) -> Verdict:
        base, tree = session.key.base_length, work.proposal.tree
        if tree.is_chain:
            return Verdict(tuple(session.pages.tokens(base, len(tree) + 1)))
        return Verdict(tuple(self.text.token(session.seed, base + depth) for depth in (0, *tree.depths())))

    def follow(self, session: Session) -> None:
        """As the real verifier does, without stop tokens."""
        orders, judged = session.orders, session.judged
        if not orders or judged is None:
            return
        base, tree = session.key.base_length, judged.proposal.tree
        verdict = self._verdict(session, judged)
        outcome = accept(Rule.MATCH, judged.proposal, verdict, seed=session.seed, base_length=base)
        following = orders[0].after(outcome)
        if following is None:
            return
        first = following if isinstance(following, DraftFirst) else None
        proposal = following if isinstance(following, Proposal) else NO_PROPOSAL
        tokens = outcome.tokens(tree)
        key = Key(session.key.session, session.key.epoch, base + len(tokens))
        self.handle(session.peer, Verify(key, base, tokens, proposal, first))
        session.orders = (*orders[0].rest(), *orders[1:])


class SimulatedDraft(SimulatedCore):
    """One pass a token; and one to look ahead: before them, or after the reply where the round was drafted ahead."""

    def steps(self, work: Propose | DraftAhead, session: Session) -> int:
        """See SimulatedCore."""
        alone = len(self.sessions) == 1  # else no last pass is run for it: see `outrider.engine.foresight`
        first = isinstance(work, DraftAhead) and not (alone and self._knows(work, session.foresaw))
        session.foresaw = None
        return work.max_tokens + first

    @property
    def awaited(self) -> bool:
        """See SimulatedCore: not the last pass of those that look ahead."""
        return any(session.steps_left > 0 for session in self.working.values())

    def end_rounds(self) -> list[tuple[SimulatedPeer, Any]]:
        """See SimulatedCore."""
        for place, session in list(self.working.items()):
            if session.steps_left == 0:
                session.foresaw = self._reply_ahead(session)
                del self.working[place]
        return super().end_rounds()

    def end(self, place: tuple[SimulatedPeer, int]) -> None:
        """See SimulatedCore: who looks ahead has a pass left."""
        if not isinstance(self.working[place].work, DraftAhead):
            super().end(place)

    @staticmethod
    def _knows(work: DraftAhead, earlier: DraftedAhead | None) -> bool:
        """Whether what is in flight was drafted ahead for what has been committed since. Rounds are chains."""
        if earlier is None or earlier.key.base_length != work.keep or not work.append:
            return False
        size, outcome = len(work.in_flight), (len(work.append) - 2, work.append[-1])
        return any(
            (each.node, each.next_token) == outcome and each.proposal.tree.truncated(size) == work.in_flight
            for each in earlier.foreseen
        )

    def rows(self, work: Propose | DraftAhead) -> int:
        """See SimulatedCore."""
        return sum(work.branches) if isinstance(work, DraftAhead) else 1

    def reply(self, session: Session) -> Drafted | DraftedAhead:
        """See SimulatedCore."""
        base, work = session.key.base_length, session.work
        if isinstance(work, Propose):
            chain = TokenTree.chain(session.pages.first_choices(base, work.max_tokens))
            return Drafted(session.key, Proposal(chain, Source.MODEL))
        return self._reply_ahead(session)

    def _reply_ahead(self, session: Session) -> DraftedAhead:
        base, work = session.key.base_length, session.work
        assert isinstance(work, DraftAhead)
        depths, foreseen = (0, *work.in_flight.depths()), []
        for node, (depth, count) in enumerate(zip(depths, work.branches, strict=True), start=ROOT):
            taken = {work.in_flight.tokens[child] for child in work.in_flight.children(node)}
            choices = self.text.choices(session.seed, base + depth, count + len(taken))
            for token in [choice for choice in choices if choice not in taken][:count]:
                after = self._proposal(session.seed, base + depth + 1, work.max_tokens)
                foreseen.append(Foreseen(node, token, after))
        return DraftedAhead(session.key, tuple(foreseen))

    def _proposal(self, seed: int, position: int, length: int) -> Proposal:
        tokens = [self.text.choices(seed, position + step, 1)[0] for step in range(length)]
        return Proposal(TokenTree.chain(tokens), Source.MODEL)
