"""A verifier that drafts by itself where it is told to, see `outrider.engine.own_draft`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.acceptance.votes import agreed_depth
from outrider.engine.ahead import (
    PAUSE,
    Awaited,
    Flight,
    Following,
    Going,
    There,
    cut,
    fitting,
    following,
    length_of,
    placeholder,
)
from outrider.engine.batch import Feed
from outrider.engine.chains import ChainsUnderWay
from outrider.engine.core import Launched
from outrider.engine.drawn import Drawn
from outrider.engine.engine import Engine
from outrider.engine.guess import DraftSession, Growing, Guess
from outrider.engine.own_draft import OwnDraft, OwnGuess
from outrider.engine.sessions import ReplicaPeer, Reply, Session
from outrider.engine.verify import VerifyCore, enough
from outrider.engine.worker import nothing
from outrider.errors import InvalidArgument
from outrider.protocol.items import DraftFirst, FollowUp, Open, Opened, Step, Verified
from outrider.sampling.plain import is_plain
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

    Where it is ordered what most rounds of a pass are followed by, the next guesses and the pass that verifies them are
    launched right behind that one, before the host knows what it came to. The device decides what stands of the guesses
    as the host will, and moves the rows that follow to where that puts them.
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
        self._other_s = 0.0  # what the host did besides, which is the round's
        self._prompt_rows = 0  # that they read
        self.sessions.on_remove = self._forget
        self._behind: Launched[VerifyRows] | None = None  # the pass that was launched behind the draft's
        self._awaited: dict[Session[VerifyRows], Awaited] = {}  # guesses that are to be verified by it
        self._flight: Flight | None = None
        self._pause = 0  # passes for which no guesses are begun ahead
        own.core.on_chains = self._verify_behind

    def claim_thread(self) -> None:
        """See `Core`."""
        super().claim_thread()
        self._own.claim_thread()

    @property
    def ahead(self) -> bool:
        """See `VerifyCore`."""
        return self._flight is not None or super().ahead

    @property
    def busy(self) -> bool:
        """See `Core`."""
        return bool(self._voters) or self._own.busy or super().busy

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[ReplicaPeer, Reply]]:
        """A pass of the draft or one of the target."""
        if self._flight is not None:
            return self._land(self._flight, meanwhile)
        self._count_votes(self._depth([]))
        if not self.busy:
            return []
        if self._next is not None or not self._own.busy or (self._in_a_row >= MOST_IN_A_ROW and super().busy):
            replies = super().step(meanwhile)
            self._end_drafting()
            return replies
        self._drafted_now(self._own.step(meanwhile))
        if self._behind is None:
            return []
        behind, self._behind = self._behind, None
        return self._verified_now(behind, early=False)

    def _land(self, flight: Flight, meanwhile: Callable[[], None]) -> Sequence[tuple[ReplicaPeer, Reply]]:
        """Finish what has been launched ahead."""
        self._flight, self._meanwhile = None, meanwhile
        self.overlap()
        self._drafted_now(self._own.take(flight.chains))
        return self._verified_now(flight.launched, early=True)

    def _drafted_now(self, guesses: Sequence[OwnGuess]) -> None:
        """A pass of the draft has ended with these guesses."""
        for guess in guesses:
            self._verify(guess)
        self._in_a_row += 1
        lap, took = self.laps.lap(), self._own.took_s()
        drafting = lap if took is None else min(took, lap)
        self._drafting_s += drafting
        self._other_s += lap - drafting
        self._prompt_rows += self._own.prompt_rows

    def _verified_now(self, launched: Launched[VerifyRows], *, early: bool) -> list[tuple[ReplicaPeer, Reply]]:
        """Finish the pass that was launched before its guesses were known; `early`: before its turn."""
        replies = self.complete(self._with_guesses(launched), early=early)
        self._end_drafting()
        return replies

    def last_feed(self, session: Session[VerifyRows]) -> Feed:
        """See `VerifyCore`."""
        feed = super().last_feed(session)
        awaited = self._awaited.get(session)
        return feed if awaited is None or feed.at is not None else replace(feed, tree=awaited.tree)

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
        if self._depth([session.orders[0] for session in voters]):
            voters = []
        return super().plainly_followed(sessions) + voters

    def go_ahead(self, there: Mapping[Session[VerifyRows], There], drawn: torch.Tensor) -> None:
        """See `VerifyCore`; where guesses follow, or are followed, the device decides what the next rounds follow."""
        apart = self._own.core.engine.device == self.engine.device and self._own.draws_apart
        apart = apart and all(is_plain(session.sampling) for session in self._voters)
        depth = self._depth([session.orders[0] for session in there if session.orders])
        self._pause = max(0, self._pause - 1)
        each_of = there.items() if apart and not self._pause else ()
        followed = [following(session, each, self._own, depth, self.max_proposal) for session, each in each_of]
        known = [each for each in followed if each]
        guessing = self._own.busy or bool(self._voters) or any(each.length or each.verified for each in known)
        if guessing and enough(known, there):
            self._follow_ahead(known, there, depth, drawn)
        else:
            super().go_ahead(there, drawn)

    def _follow_ahead(
        self, rounds: Sequence[Following], there: Iterable[Session[VerifyRows]], depth: int, drawn: torch.Tensor
    ) -> None:
        """Launch the guesses of the `rounds`, and of who waits for one; behind them the pass that verifies them."""
        drafts = {
            each.session: self._own.hold(each.session, each.verified, each.length) for each in rounds if each.length
        }
        rounds = [each for each in rounds if not each.length or drafts[each.session]]
        if not rounds:
            return
        outcomes = self.engine.settle(drawn, [each.guessed for each in rounds])
        self._count_votes(depth)
        feeds, guesses = {}, {}
        for row, each in enumerate(rounds):
            if draft := drafts.get(each.session):
                feeds[draft], guesses[draft] = each.to_draft(draft, outcomes, row), Guess(each.length, Growing())
        if not feeds and not self._own.busy:
            plain = {each.session: each.to_verify(outcomes, row, None, ()) for row, each in enumerate(rounds)}
            self._next = self.launch_ahead(plain, there, outcomes)
        elif chains := self._own.draft_ahead(feeds, guesses, outcomes):
            self._verify_ahead(rounds, drafts, guesses, chains, outcomes, there)
        else:
            self._pause = PAUSE

    def _verify_ahead(
        self,
        rounds: Sequence[Following],
        drafts: Mapping[Session[VerifyRows], DraftSession | None],
        guesses: Mapping[DraftSession, Guess],
        chains: ChainsUnderWay,
        outcomes: Drawn,
        there: Iterable[Session[VerifyRows]],
    ) -> None:
        """Launch the pass of the `rounds` whose guesses are being drawn."""
        where, lines = chains.drawing.drawn.after(outcomes), {draft: row for row, draft in enumerate(chains.sessions)}
        begun: dict[Session[VerifyRows], Going] = {}
        for row, each in enumerate(rounds):
            draft = drafts.get(each.session)
            if draft is None:
                begun[each.session] = each.to_verify(outcomes, row, None, ())
            elif draft in lines:  # else there was no room for it
                tokens = where.line(lines[draft], min(each.length, chains.steps))
                begun[each.session] = going = each.to_verify(outcomes, row, guesses[draft], tokens)
                self._awaited[each.session] = Awaited(going.feed.tree, going.work)
        self._await(chains, where)
        launched = self.launch_ahead(begun, there, where)
        if launched is not None:
            self._flight = Flight(chains, launched)
            return
        self._awaited.clear()
        for guess in self._own.take(chains):
            self._verify(guess)

    def took_s(self) -> float:
        """See `VerifyCore`."""
        return super().took_s() + self._other_s

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
        self._in_a_row, self._drafting_s, self._other_s, self._prompt_rows = 0, 0.0, 0.0, 0

    def _depth(self, orders: Sequence[FollowUp]) -> int:
        """What the votes of these orders and of those who wait come to."""
        votes = [order.vote for order in orders] + [wanted.vote for wanted, _ in self._voters.values()]
        return agreed_depth([vote for vote in votes if vote is not None])

    def _count_votes(self, depth: int) -> None:
        """Begin the rounds of those that voted, all with guesses of the same length but for who can have no such."""
        voters, self._voters = self._voters, {}
        for session, (wanted, base) in voters.items():
            if base != len(session.history):
                continue  # it has been moved meanwhile
            if length := length_of(wanted, depth):
                self._draft(session, DraftFirst(length))
            else:
                self._verify(OwnGuess(session, NO_PROPOSAL))

    def _draft(self, session: Session[VerifyRows], wanted: DraftFirst) -> None:
        if guess := self._own.ask(session, fitting(wanted, session)):
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

    def _verify_behind(self, chains: ChainsUnderWay) -> None:
        """Launch the pass over what is being drafted, unless more is to be drafted before it."""
        if self._behind is not None or not self.engine.takes_drawn or self._own.others_wait(chains.sessions):
            return
        if not all(guess.draws_apart and guess.max_tokens <= chains.steps for guess in chains.guesses):
            return
        self._await(chains, chains.drawing.drawn)
        if self._awaited:
            self._behind = self.launch(chains.drawing.drawn)

    def _await(self, chains: ChainsUnderWay, where: Drawn) -> None:
        """Let what is drafted be verified from where it will be, for all whose history is known."""
        ahead = chains.ahead or ()
        for row, (draft, guess) in enumerate(zip(chains.sessions, chains.guesses, strict=True)):
            session = None if draft in ahead else self._own.asked_for(draft)
            if session is not None and guess.max_tokens <= chains.steps:
                tree = TokenTree.chain(where.line(row, guess.max_tokens))
                session.work = VerifyRows(session.sampling, len(session.history), placeholder(len(tree)), known=True)
                self._awaited[session] = Awaited(tree, session.work)

    def _with_guesses(self, behind: Launched[VerifyRows]) -> Launched[VerifyRows]:
        """The pass, now that what it verifies is known: rows beyond a guess's end are not looked at."""
        awaited, self._awaited = self._awaited, {}
        for session, each in awaited.items():
            if session.work is each.work and session in self.sessions:  # the draft has nothing
                self._own.cancel(session)
                self._verify(OwnGuess(session, NO_PROPOSAL))
        logits = behind.logits
        if isinstance(logits, Exception):
            return behind
        works, shorter = list(behind.works), False
        for row, session in enumerate(behind.finishing):
            # Who has been closed, or told of something else, has no guess: what stands for it is judged, for nobody.
            if session in awaited and session in self._drafted and session.work is not None:
                works[row] = session.work
                session.sequence.tree = session.work.proposal.tree
                shorter |= len(session.sequence.tree) < len(awaited[session].tree)
        behind = behind._replace(works=works)
        return cut(behind, logits) if shorter else behind

    def catch_up(self, session: Session[VerifyRows], going: Going) -> None:
        """See `VerifyCore`."""
        super().catch_up(session, going)
        if going.guess is not None:
            self._own.follow(session, going.guess)

    def _forget_guess(self, session: Session[VerifyRows]) -> None:
        """Another round begins: what was wanted for the last one is not any more."""
        self._own.cancel(session)
        self._drafted.pop(session, None)
        self._voters.pop(session, None)

    def _forget(self, session: Session[VerifyRows]) -> None:
        self._own.forget(session)
        self._drafted.pop(session, None)
        self._voters.pop(session, None)
