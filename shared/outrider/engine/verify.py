"""The verifier's rounds: run the target over the last committed token and every proposed one, and judge each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from outrider.acceptance.accept import decide
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Verdict
from outrider.acceptance.tree import TokenTree
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

ENOUGH = 0.75
"""Part of a pass's rounds that plain ones have to follow for the next pass to begin without the others."""


class Going(NamedTuple):
    """A plain round that has begun while the token before it is still being drawn."""

    work: VerifyRows
    token: int  # what stands for it: see `Drawn.reference`


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
        self._going: dict[Session[VerifyRows], Going] = {}  # in it, of the sessions in the pass that is being finished

    @property
    def busy(self) -> bool:
        """See `Core`."""
        return self._next is not None or super().busy

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[ReplicaPeer, Reply]]:
        """See `ReplicaCore`; the pass may have been launched before."""
        self._meanwhile = meanwhile
        launched, self._next = self._next or self.launch(), None
        return self.complete(launched)

    def complete(self, launched: Launched[VerifyRows]) -> list[tuple[ReplicaPeer, Reply]]:
        """See `ReplicaCore`. What goes on from this pass is known with its end, and begins nothing twice."""
        assert not self._going
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
        if session in self._going:
            return Demand(1, 0)
        work, chain = session.work, len(session.history) - len(session.sequence.cached)
        return Demand(chain - 1, 0) if work is None else Demand(chain, len(work.proposal.tree.tokens))

    def last_feed(self, session: Session[VerifyRows]) -> Feed:
        """The rest of the history with the proposed tree after it; logits for its last token and every node."""
        assert session.work is not None
        if going := self._going.get(session):
            return Feed(session.sequence, (), TokenTree.chain((going.token,)))
        tokens = session.history[len(session.sequence.cached) :]
        return Feed(session.sequence, tokens, session.work.proposal.tree, want_logits=True)

    def finish_step(
        self, sessions: Sequence[Session[VerifyRows]], works: Sequence[VerifyRows], logits: torch.Tensor
    ) -> list[tuple[ReplicaPeer, Reply]]:
        """Judge all sessions' rows at once. Rounds that were replaced since the pass began are not told of."""
        judging = Judging(logits, works)
        if judging.drawn is not None:
            self._go_ahead(sessions, works, judging.drawn)
        self.overlap()
        verdicts = judging.verdicts()
        microseconds = int(self.laps.lap() * 1e6)
        step = self.step_of(sessions)
        replies: list[tuple[ReplicaPeer, Reply]] = []
        for session, work, verdict in zip(sessions, works, verdicts, strict=True):
            if not self._stands(session, work):
                continue
            session.judged = work.proposal, verdict
            session.work = None
            timed = Verdict(verdict.next_tokens, verdict.thresholds, verdict.logprobs, microseconds)
            replies.append((session.peer, self.verified(session, timed, step)))
            if reply := self._follow(session):
                replies.append((session.peer, reply))
        return replies

    def plainly_followed(self, sessions: Sequence[Session[VerifyRows]]) -> list[Session[VerifyRows]]:
        """Those of `sessions`, in plain rounds, that are ordered to go on with plain rounds whatever comes of these."""
        return [session for session in sessions if session.orders and session.orders[0].is_plain]

    def _stands(self, session: Session[VerifyRows], work: VerifyRows) -> bool:
        """True if `work` is the session's round still, or the one before the round that has begun behind it."""
        going = self._going.get(session)
        return session in self.sessions and session.work is (work if going is None else going.work)

    def _go_ahead(
        self, sessions: Sequence[Session[VerifyRows]], works: Sequence[VerifyRows], drawn: torch.Tensor
    ) -> None:
        """Launch the next pass, if plain rounds are known to follow most of this one. `drawn` [R]: its tokens."""
        if self._next is not None or not self.engine.takes_drawn:
            return
        there: dict[Session[VerifyRows], int] = {}  # with their first rows
        plain: dict[Session[VerifyRows], VerifyRows] = {}
        row = 0
        for session, work in zip(sessions, works, strict=True):
            if self._stands(session, work):
                there[session] = row
                if len(work) == 1 and len(session.history) < session.sequence.max_length:
                    plain[session] = work
            row += len(work)
        going = self.plainly_followed(list(plain))
        if len(going) < max(1, ENOUGH * len(there)):
            return
        where = Drawn(drawn, len(drawn))
        for session in going:
            session.work = VerifyRows(session.sampling, len(session.history) + 1, NO_PROPOSAL)
            self._going[session] = Going(session.work, where.reference(0, there.pop(session)))
        launched = self.launch(where, without=there)
        for session in set(going).difference(launched.finishing):  # no room for it now, or for any
            session.work = plain[session]
            del self._going[session]
        if not isinstance(launched.logits, Exception):  # else it is tried again, and told of, when this pass has ended
            self._next = launched

    def step_of(self, sessions: Sequence[Session[VerifyRows]]) -> Step:
        """What the rounds of these sessions shared a pass with: each other, and others' prompts."""
        return Step(self.pass_rows, len(sessions))

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

    def _follow(self, session: Session[VerifyRows]) -> Reply | None:
        """Begin the next round if the last one has ended and a follow-up covers its outcome."""
        judged = session.judged
        if judged is None or not session.orders:
            return None
        order = session.orders[0]
        (proposal, verdict), sampling, base = judged, session.sampling, len(session.history)
        outcome = decide(sampling.rule, proposal, verdict, seed=sampling.seed, base_length=base)
        tokens, path = outcome.tokens(proposal.tree), outcome.accepted
        if going := self._going.get(session):  # then what is in flight is the token that followed
            session.sequence.tree, path = TokenTree.chain(tokens), (0,)
        if not session.stop_token_ids.isdisjoint(tokens):
            return None  # the answer ends here
        following = order.after(outcome)
        if following is None:
            return None
        try:
            self.sessions.go_on(session, tokens, path)
            session.orders = (*order.rest(), *session.orders[1:])
            if going:
                session.work = going.work
            elif isinstance(following, DraftFirst):
                self.begin_drafting(session, following)
            else:
                self.begin(session, following)
        except Exception as error:
            return self.refusal(Key(session.number, session.epoch, base + len(tokens)), error)
        return None


def _check_extension(session: Session[VerifyRows], item: FollowUp) -> None:
    if item.foreseen:
        raise InvalidArgument("follow_up.foreseen", len(item.foreseen), "empty where it extends an order")
    if len(session.orders) > 1:
        raise InvalidArgument("follow_up.extends", item.extends, "unset: an extension waits already")
