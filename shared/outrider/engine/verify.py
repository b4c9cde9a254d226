"""The verifier's rounds: run the target over the last committed token and every proposed one, and judge each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.acceptance.accept import decide
from outrider.acceptance.proposal import Proposal, Verdict
from outrider.engine.batch import Feed
from outrider.engine.core import ReplicaCore
from outrider.engine.schedule import Demand
from outrider.engine.sessions import ItemRefused, ReplicaPeer, Reply, Session
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
from outrider.sampling.verify import VerifyRows, verify_rows


class VerifyCore(ReplicaCore[VerifyRows]):
    """A session's work is its proposal, checked."""

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
        work, chain = session.work, len(session.history) - len(session.sequence.cached)
        return Demand(chain - 1, 0) if work is None else Demand(chain, len(work.proposal.tree.tokens))

    def last_feed(self, session: Session[VerifyRows]) -> Feed:
        """The rest of the history with the proposed tree after it; logits for its last token and every node."""
        assert session.work is not None
        tokens = session.history[len(session.sequence.cached) :]
        return Feed(session.sequence, tokens, session.work.proposal.tree, want_logits=True)

    def finish_step(
        self, sessions: Sequence[Session[VerifyRows]], logits: torch.Tensor
    ) -> list[tuple[ReplicaPeer, Reply]]:
        """Judge all sessions' rows at once."""
        self.overlap()
        verdicts = verify_rows(logits, [session.work for session in sessions if session.work is not None])
        microseconds = int(self.laps.lap() * 1e6)
        step = self.step_of(sessions)
        replies: list[tuple[ReplicaPeer, Reply]] = []
        for session, verdict in zip(sessions, verdicts, strict=True):
            assert session.work is not None
            session.judged = session.work.proposal, verdict
            session.work = None
            timed = Verdict(verdict.next_tokens, verdict.thresholds, verdict.logprobs, microseconds)
            replies.append((session.peer, self.verified(session, timed, step)))
            if reply := self._follow(session):
                replies.append((session.peer, reply))
        return replies

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
        tokens = outcome.tokens(proposal.tree)
        if not session.stop_token_ids.isdisjoint(tokens):
            return None  # the answer ends here
        following = order.after(outcome)
        if following is None:
            return None
        try:
            self.sessions.go_on(session, tokens, outcome.accepted)
            session.orders = (*order.rest(), *session.orders[1:])
            if isinstance(following, DraftFirst):
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
