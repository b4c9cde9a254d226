"""A verifier that drafts by itself where it is told to, see `outrider.engine.own_draft`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.acceptance.votes import agreed_depth
from outrider.engine.batch import Feed
from outrider.engine.core import Launched
from outrider.engine.drawn import Drawn
from outrider.engine.engine import Engine
from outrider.engine.guess import DraftSession, Guess
from outrider.engine.own_draft import OwnDraft, OwnGuess
from outrider.engine.sessions import ReplicaPeer, Reply, Session
from outrider.engine.verify import VerifyCore
from outrider.engine.worker import nothing
from outrider.errors import InvalidArgument
from outrider.protocol.items import DraftFirst, Open, Opened, Step, Verified
from outrider.sampling.verify import VerifyRows
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

MOST_IN_A_ROW = 4
"""Passes of the draft while somebody waits to be verified: a long prompt takes many."""


class DraftingVerifyCore(VerifyCore):
    """Drafting goes before verifying, so that sessions whose rounds end together stay together.

    Where the device draws what is drafted without the host between, the pass that verifies it is launched right behind:
    its rows, places and tables are known, its tokens stand on the device. The host learns of them while they are
    verified.
    """

    def __init__(self, engine: Engine, own: OwnDraft, *, max_proposal: int, lease_s: float) -> None:
        """See `ReplicaCore`."""
        super().__init__(engine, max_proposal=max_proposal, lease_s=lease_s)
        assert own.core.max_proposal >= max_proposal, "what may be verified may be drafted"
        self._own = own
        self.own_draft = own.core
        self._drafted: dict[Session[VerifyRows], Proposal] = {}  # for the rounds in progress
        self._voters: dict[Session[VerifyRows], tuple[DraftFirst, int]] = {}  # with their base length
        self._in_a_row = 0  # passes of the draft since the last one of the target
        self._drafting_s = 0.0  # what they took
        self._prompt_rows = 0  # that they read
        self.sessions.on_remove = self._forget
        self._behind: Launched[VerifyRows] | None = None  # the pass that was launched behind the draft's
        self._awaited: dict[Session[VerifyRows], TokenTree] = {}  # what stands for guesses in it until they are known
        own.core.on_chains = self._verify_behind

    def claim_thread(self) -> None:
        """See `Core`."""
        super().claim_thread()
        self._own.claim_thread()

    @property
    def busy(self) -> bool:
        """See `Core`."""
        return bool(self._voters) or self._own.busy or super().busy

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[ReplicaPeer, Reply]]:
        """A pass of the draft or one of the target."""
        self._count_votes()
        if not self.busy:
            return []
        if self._next is not None or not self._own.busy or (self._in_a_row >= MOST_IN_A_ROW and super().busy):
            replies = super().step(meanwhile)
            self._end_drafting()
            return replies
        for guess in self._own.step(meanwhile):
            self._verify(guess)
        self._in_a_row += 1
        self._drafting_s += self.laps.lap()
        self._prompt_rows += self._own.prompt_rows
        if self._behind is None:
            return []
        behind, self._behind = self._behind, None
        replies = self.complete(self._with_guesses(behind))
        self._awaited.clear()
        self._end_drafting()
        return replies

    def last_feed(self, session: Session[VerifyRows]) -> Feed:
        """See `VerifyCore`."""
        feed = super().last_feed(session)
        awaited = self._awaited.get(session)
        return feed if awaited is None else Feed(feed.sequence, feed.tokens, awaited)

    def expire(self, now: float) -> None:
        """See `Core`."""
        super().expire(now)
        self._own.expire(now)

    def open(self, peer: ReplicaPeer, item: Open) -> Opened:
        """See `ReplicaCore`."""
        reply = super().open(peer, item)
        self._own.expect(self.sessions.find(peer, item.key), item)
        return reply

    def begin(self, session: Session[VerifyRows], proposal: Proposal) -> None:
        """See `VerifyCore`."""
        self._forget_guess(session)
        super().begin(session, proposal)

    def begin_drafting(self, session: Session[VerifyRows], wanted: DraftFirst) -> None:
        """See `VerifyCore`. Also raises ItemRefused."""
        self._forget_guess(session)
        if wanted.max_tokens > self.max_proposal:
            raise InvalidArgument("verify.draft_first.max_tokens", wanted.max_tokens, f"at most {self.max_proposal}")
        if wanted.vote is None:
            self._draft(session, wanted)
        elif wanted.siblings:
            raise InvalidArgument("verify.draft_first.siblings", wanted.siblings, "empty where there is a vote")
        else:
            self._voters[session] = wanted, len(session.history)

    def plainly_followed(self, sessions: Sequence[Session[VerifyRows]]) -> list[Session[VerifyRows]]:
        """See `VerifyCore`. Those that would vote for nothing are among them; nobody while some are drafted for."""
        if self._own.busy or self._voters:
            return []
        voters = [session for session in sessions if session.orders and session.orders[0].vote is not None]
        if agreed_depth([vote for each in voters if (vote := each.orders[0].vote) is not None]):
            voters = []
        return super().plainly_followed(sessions) + voters

    def step_of(self, sessions: Sequence[Session[VerifyRows]]) -> Step:
        """See `VerifyCore`; with how long they were drafted for, and how much."""
        depth = max((self._drafted[each].tree.depth for each in sessions if each in self._drafted), default=0)
        step, microseconds = super().step_of(sessions), int(self._drafting_s * 1e6)
        return step._replace(draft_microseconds=microseconds, draft_depth=depth, draft_prompt_rows=self._prompt_rows)

    def verified(self, session: Session[VerifyRows], verdict: Verdict, step: Step) -> Verified:
        """The verdict, and what was drafted for it here."""
        return Verified(session.key, verdict, self._drafted.pop(session, NO_PROPOSAL), step)

    def _end_drafting(self) -> None:
        """The pass of the target has ended: what comes is before the next one."""
        self._in_a_row, self._drafting_s, self._prompt_rows = 0, 0.0, 0

    def _count_votes(self) -> None:
        """Begin the rounds of those that voted, all with guesses of the same length but for who can have no such."""
        voters, self._voters = self._voters, {}
        depth = agreed_depth([wanted.vote for wanted, _ in voters.values() if wanted.vote is not None])
        for session, (wanted, base) in voters.items():
            if base != len(session.history):
                continue  # it has been moved meanwhile
            if length := min(depth, wanted.max_tokens):
                self._draft(session, DraftFirst(length))
            else:
                self._verify(OwnGuess(session, NO_PROPOSAL))

    def _draft(self, session: Session[VerifyRows], wanted: DraftFirst) -> None:
        if guess := self._own.ask(session, _fitting(wanted, session)):
            self._verify(guess)

    def _verify(self, guess: OwnGuess) -> None:
        """The session's round goes on with what was drafted for it, or without."""
        session, proposal = guess.session, guess.proposal
        try:
            session.work = VerifyRows(session.sampling, len(session.history), proposal)
        except InvalidArgument as error:
            log.error("the draft guessed what the target cannot verify: %s", error)
            proposal = NO_PROPOSAL
            session.work = VerifyRows(session.sampling, len(session.history), proposal)
        self._drafted[session] = proposal

    def _verify_behind(self, drafts: Sequence[DraftSession], steps: int, drawn: Drawn) -> None:
        """Launch the pass over what is being drafted, unless more is to be drafted before it."""
        if self._behind is not None or not self.engine.takes_drawn or self._own.others_wait(drafts):
            return
        for row, draft in enumerate(drafts):
            guess, session = draft.work, self._own.asked_for(draft)
            assert isinstance(guess, Guess)
            if guess.growing.siblings or guess.growing.tokens or guess.max_tokens > steps:
                self._awaited.clear()
                return
            if session is not None:
                tokens = [drawn.reference(step, row) for step in range(guess.max_tokens)]
                self._awaited[session] = TokenTree.chain(tokens)
        if not self._awaited:
            return
        for session, tree in self._awaited.items():
            some = Proposal(TokenTree.chain([0] * len(tree)), Source.MODEL)  # as many tokens as there will be
            session.work = VerifyRows(session.sampling, len(session.history), some)
        self._behind = self.launch(drawn)

    def _with_guesses(self, behind: Launched[VerifyRows]) -> Launched[VerifyRows]:
        """The pass, now that what it verifies is known: rows beyond a guess's end are not looked at."""
        for session in self._awaited:
            if session not in self._drafted:
                self._verify(OwnGuess(session, NO_PROPOSAL))
        logits = behind.logits
        if isinstance(logits, Exception):
            return behind
        behind = behind._replace(works=[session.work for session in behind.finishing if session.work is not None])
        shorter = False
        for session in behind.finishing:
            if awaited := self._awaited.get(session):
                assert session.work is not None
                session.sequence.tree = session.work.proposal.tree
                shorter |= len(session.sequence.tree) < len(awaited)
        return self._cut(behind, logits) if shorter else behind

    def _cut(self, behind: Launched[VerifyRows], logits: torch.Tensor) -> Launched[VerifyRows]:
        parts, works = torch.split(logits, [feed.logit_rows for feed in behind.feeds]), behind.works
        rows = [part[: len(work)] for part, work in zip(parts, works, strict=True)]
        feeds = [replace(feed, tree=work.proposal.tree) for feed, work in zip(behind.feeds, works, strict=True)]
        return behind._replace(feeds=feeds, logits=torch.cat(rows))

    def _forget_guess(self, session: Session[VerifyRows]) -> None:
        """Another round begins: what was wanted for the last one is not any more."""
        self._own.cancel(session)
        self._drafted.pop(session, None)
        self._voters.pop(session, None)

    def _forget(self, session: Session[VerifyRows]) -> None:
        self._own.forget(session)
        self._drafted.pop(session, None)
        self._voters.pop(session, None)


def _fitting(wanted: DraftFirst, session: Session[VerifyRows]) -> DraftFirst:
    """As much as the session has room for."""
    room = session.sequence.max_length - len(session.history)
    if wanted.max_tokens + sum(wanted.siblings) <= room:
        return wanted
    return DraftFirst(min(wanted.max_tokens, room))
