"""The verifier's rounds: run the target over the last committed token and every proposed one, and judge each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized

import torch

from outrider.acceptance.accept import decide
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Verdict
from outrider.acceptance.tally import Tallying
from outrider.engine.ahead import Going, There
from outrider.engine.batch import Feed
from outrider.engine.core import Launched, ReplicaCore
from outrider.engine.drawn import Drawn
from outrider.engine.engine import Engine
from outrider.engine.schedule import Demand
from outrider.engine.sessions import ItemRefused, ReplicaPeer, Reply, Session
from outrider.engine.worker import nothing
from outrider.errors import InvalidArgument
from outrider.protocol.items import (
    MAX_ROUNDS,
    DraftAhead,
    DraftFirst,
    FailureCode,
    FollowUp,
    Key,
    Propose,
    Step,
    Verified,
    Verify,
)
from outrider.sampling.verify import Judging, VerifyRows

RECENT = 8
"""Passes that tell whether they are launched before their turn as a rule."""

FEW_VERDICTS = 4
"""Rounds in a pass whose verdicts leave before its draws are launched: somebody may wait for them to draft.

More of them would take the processor for so long that the draws come late.
"""

ENOUGH = 0.75
"""Part of a pass's rounds that known ones have to follow for the next pass to begin without the others."""


class VerifyCore(ReplicaCore[VerifyRows]):
    """A session's work is its proposal, checked.

    Where plain rounds are ordered to follow the rounds of a pass, and the device draws by itself, the next pass is
    launched right behind those draws: its rows and places are known, its tokens stand on the device. The host learns
    of them, and tells the coordinators, while that pass runs.
    """

    def __init__(self, engine: Engine, *, max_proposal: int, lease_s: float) -> None:
        """See `ReplicaCore`."""
        super().__init__(engine, max_proposal=max_proposal, lease_s=lease_s)
        self._next: Launched[VerifyRows] | None = None  # the pass that runs already
        self._early = False  # whether the pass that is being finished was launched before its turn
        self._early_share = float(engine.takes_drawn)  # of the last passes, about `RECENT` of them
        self._tallying = Tallying()  # what came of the guesses that were drafted here, since it was last told
        self._going: dict[Session[VerifyRows], Going] = {}  # in it, of the sessions in the pass that is being finished

    @property
    def ahead(self) -> bool:
        """Whether a pass has been launched before its turn."""
        return self._next is not None

    @property
    def busy(self) -> bool:
        """See `Core`."""
        return self.ahead or super().busy

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[ReplicaPeer, Reply]]:
        """See `ReplicaCore`; the pass may have been launched before."""
        self._meanwhile = meanwhile
        ahead, self._next = self._next, None
        if ahead is not None:
            return self.complete(ahead, early=True)
        launched = self.launch()
        if 0 < len(launched.finishing) <= FEW_VERDICTS:
            self.overlap()
        return self.complete(launched)

    def complete(self, launched: Launched[VerifyRows], *, early: bool = False) -> list[tuple[ReplicaPeer, Reply]]:
        """See `ReplicaCore`. What goes on from this pass is known with its end, and begins nothing twice.

        `early`: it was launched before its turn.
        """
        assert not self._going
        self._early = early
        if launched.finishing:
            self._early_share += (early - self._early_share) / RECENT
        try:
            return super().complete(launched)
        finally:
            self._going.clear()

    def start_round(self, session: Session[VerifyRows], item: Verify | Propose | DraftAhead) -> Reply | None:
        """Check the proposal; the verdict comes from a later step."""
        assert isinstance(item, Verify)
        if item.draft_first is None:
            self.begin(session, item.proposal)
        elif len(item.proposal):
            raise InvalidArgument("verify.draft_first", item.draft_first.max_tokens, "unset where there is a proposal")
        else:
            self.begin_drafting(session, item.draft_first)
        return None

    def begin(self, session: Session[VerifyRows], proposal: Proposal) -> None:
        """Begin a round. Raise InvalidArgument for a proposal that cannot be verified."""
        size, room = len(proposal), session.sequence.max_length - len(session.history)
        if size > self.max_proposal or size > room:
            most = min(self.max_proposal, room)
            raise InvalidArgument("proposal.tree.tokens", size, f"at most {most} long")
        session.work = VerifyRows(session.sampling, len(session.history), proposal)

    def begin_drafting(self, session: Session[VerifyRows], wanted: DraftFirst) -> None:
        """Begin a round with what the replica drafts. Raise InvalidArgument for a bad wish, or without a draft."""
        raise InvalidArgument("verify.draft_first", wanted.max_tokens, "unset: there is no draft here")

    def demand(self, session: Session[VerifyRows]) -> Demand:
        """All committed tokens without KV, and the proposal; without a round, all but the last of them."""
        if going := self._going.get(session):
            return Demand(len(going.feed.tokens), len(going.feed.tree))
        work, chain = session.work, len(session.history) - len(session.sequence.cached)
        return Demand(chain - 1, 0) if work is None else Demand(chain, len(work.proposal.tree.tokens))

    def last_feed(self, session: Session[VerifyRows]) -> Feed:
        """The rest of the history with the proposed tree after it; logits for its last token and every node."""
        assert session.work is not None
        if going := self._going.get(session):
            return going.feed
        tokens = session.history[len(session.sequence.cached) :]
        return Feed(session.sequence, tokens, session.work.proposal.tree, want_logits=True)

    def finish_step(
        self, sessions: Sequence[Session[VerifyRows]], works: Sequence[VerifyRows], logits: torch.Tensor
    ) -> list[tuple[ReplicaPeer, Reply]]:
        """Judge all sessions' rows at once. Rounds that were replaced since the pass began are not told of."""
        judging = Judging(logits, works)
        if judging.drawn is not None and not self.ahead and self.engine.takes_drawn:
            self.go_ahead(self._there(sessions, works), judging.drawn)
        self.overlap()
        verdicts = judging.verdicts()
        microseconds = int(self.took_s() * 1e6)
        step = self.step_of(sessions)
        replies: list[tuple[ReplicaPeer, Reply]] = []
        for session, work, verdict in zip(sessions, works, verdicts, strict=True):
            if not self._stands(session, work):
                continue
            session.judged = work.proposal, verdict
            session.work = None
            timed = Verdict(verdict.next_tokens, verdict.thresholds, verdict.logprobs, microseconds)
            verified = self.verified(session, timed, step)
            replies.append((session.peer, verified))
            if reply := self._follow(session, drafted_here=bool(verified.drafted)):
                replies.append((session.peer, reply))
        return replies

    def plainly_followed(self, sessions: Sequence[Session[VerifyRows]]) -> list[Session[VerifyRows]]:
        """Those of `sessions`, in plain rounds, that are ordered to go on with plain rounds whatever comes of these."""
        return [session for session in sessions if session.orders and session.orders[0].is_plain]

    def _stands(self, session: Session[VerifyRows], work: VerifyRows) -> bool:
        """True if `work` is the session's round still, or the one before the round that has begun behind it."""
        going = self._going.get(session)
        return session in self.sessions and session.work is (work if going is None else going.work)

    def go_ahead(self, there: Mapping[Session[VerifyRows], There], drawn: torch.Tensor) -> None:
        """Launch the next pass, if it is known what follows most of the rounds `there`. `drawn` [R]: their tokens."""
        plain = [
            session
            for session, (work, _) in there.items()
            if len(work) == 1 and len(session.history) < session.sequence.max_length
        ]
        going = self.plainly_followed(plain)
        if not enough(going, there):
            return
        where = Drawn(drawn, len(drawn))
        begun: dict[Session[VerifyRows], Going] = {}
        for session in going:
            base, token = len(session.history), where.reference(0, there[session].row)
            work = VerifyRows(session.sampling, base + 1, NO_PROPOSAL)
            begun[session] = Going(work, Feed(session.sequence, (token,), at=base))
        self._next = self.launch_ahead(begun, there, where)

    def launch_ahead(
        self, begun: Mapping[Session[VerifyRows], Going], there: Iterable[Session[VerifyRows]], where: Drawn
    ) -> Launched[VerifyRows] | None:
        """The pass of the rounds that have `begun`, and those of all who wait but for the others `there`.

        None, and nothing has begun, if it fails: it is tried again, and told of, when the pass before it has ended.
        """
        before = {session: session.work for session in begun}
        for session, going in begun.items():
            session.work = going.work
        self._going = dict(begun)
        launched = self.launch(where, without=set(there).difference(begun))
        for session in set(begun).difference(launched.finishing):  # no room for it now, or for any
            session.work = before[session]
            del self._going[session]
        return None if isinstance(launched.logits, Exception) else launched

    def catch_up(self, session: Session[VerifyRows], going: Going) -> None:
        """What the round that has begun ahead follows is the session's history now."""
        session.work = going.work
        going.work.base_length = len(session.history)  # all that was not known of it
        session.sequence.extend(session.history[-1:], going.feed.tree)

    def _there(
        self, sessions: Sequence[Session[VerifyRows]], works: Sequence[VerifyRows]
    ) -> dict[Session[VerifyRows], There]:
        """Those of the rounds that stand."""
        there: dict[Session[VerifyRows], There] = {}
        row = 0
        for session, work in zip(sessions, works, strict=True):
            if self._stands(session, work):
                there[session] = There(work, row)
            row += len(work)
        return there

    def took_s(self) -> float:
        """Seconds since the last lap: what the pass took that is being finished."""
        return self.laps.lap()

    def step_of(self, sessions: Sequence[Session[VerifyRows]]) -> Step:
        """What the rounds of these sessions shared a pass with: each other, and others' prompts."""
        waited = not self._early and self._early_share > 0.5
        return Step(self.pass_rows, len(sessions), waited=waited, tally=self._tallying.take())

    def verified(self, session: Session[VerifyRows], verdict: Verdict, step: Step) -> Verified:
        """The reply to a round."""
        return Verified(session.key, verdict, step=step)

    def follow_up(self, session: Session[VerifyRows], item: FollowUp) -> Reply | None:
        """See ReplicaCore. It may come while the round runs or after it has ended."""
        base = session.ordered_at if item.extends else len(session.history)
        if item.key.base_length != base:
            known = "there is no order to extend" if base is None else f"not of {base}"
            raise ItemRefused(FailureCode.BASE_LENGTH, f"the follow-up is of {item.key.base_length} tokens, {known}")
        if item.rounds > (most := 1 if item.foreseen else MAX_ROUNDS):
            raise InvalidArgument("follow_up.rounds", item.rounds, f"at most {most}")
        if item.extends:
            _check_extension(session, item)
            session.orders = (*session.orders, item)
        else:
            session.orders, session.ordered_at = (item,), base
        return self._follow(session)

    def _follow(self, session: Session[VerifyRows], *, drafted_here: bool = False) -> Reply | None:
        """Begin the next round if the last one has ended and a follow-up covers its outcome."""
        judged = session.judged
        if judged is None or not session.orders:
            return None
        order = session.orders[0]
        (proposal, verdict), sampling, base = judged, session.sampling, len(session.history)
        outcome = decide(sampling.rule, proposal, verdict, seed=sampling.seed, base_length=base)
        tokens = outcome.tokens(proposal.tree)
        if not session.stop_token_ids.isdisjoint(tokens) or base + len(tokens) >= session.sequence.max_length:
            return None  # the answer ends here
        following = order.after(outcome)
        if following is None:
            return None
        try:
            self.sessions.go_on(session, tokens, outcome.accepted)
            if drafted_here and proposal.tree.is_chain:
                self._tallying.add(len(proposal), len(outcome.accepted))
            session.orders = (*order.rest(), *session.orders[1:])
            if going := self._going.get(session):
                self.catch_up(session, going)
            elif isinstance(following, DraftFirst):
                self.begin_drafting(session, following)
            else:
                self.begin(session, following)
        except Exception as error:
            return self.refusal(Key(session.number, session.epoch, base + len(tokens)), error)
        return None


def enough(going: Sized, there: Sized) -> bool:
    """Whether so many go on from a pass that the next one begins without the others that are `there`."""
    return len(going) >= max(1, ENOUGH * len(there))


def _check_extension(session: Session[VerifyRows], item: FollowUp) -> None:
    if item.foreseen:
        raise InvalidArgument("follow_up.foreseen", len(item.foreseen), "empty where it extends an order")
    if len(session.orders) > 1:
        raise InvalidArgument("follow_up.extends", item.extends, "unset: an extension waits already")
