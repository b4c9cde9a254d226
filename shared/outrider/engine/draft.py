"""The draft's rounds: guess tokens one after another, all sessions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, SparseQ
from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.core import ReplicaCore
from outrider.engine.schedule import Demand
from outrider.engine.sessions import ItemRefused, ReplicaPeer, Reply, Session
from outrider.errors import InvalidArgument
from outrider.protocol.items import Drafted, FailureCode, Propose, Verify
from outrider.sampling.draft import DraftedToken, DraftRow, draft_rows


@dataclass(slots=True)
class Guess:
    """A proposal in the making."""

    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    q: list[SparseQ] = field(default_factory=list)

    def add(self, drafted: DraftedToken) -> None:
        """Take in the next token."""
        self.tokens.append(drafted.token)
        if drafted.q is not None:
            self.q.append(drafted.q)

    @property
    def full(self) -> bool:
        """True when nothing more was asked for."""
        return len(self.tokens) == self.max_tokens

    @property
    def proposal(self) -> Proposal:
        """What has been guessed."""
        return Proposal(TokenTree.chain(self.tokens), Source.MODEL, tuple(self.q))


class DraftCore(ReplicaCore[Guess]):
    """A session's work is its guess so far. The KV of guessed tokens stays where the target accepts them."""

    def start_round(self, session: Session[Guess], item: Verify | Propose) -> Reply | None:
        """Begin to guess; the proposal comes from a later step."""
        assert isinstance(item, Propose)
        if item.max_tokens > self.max_proposal:
            raise InvalidArgument("propose.max_tokens", item.max_tokens, f"at most {self.max_proposal}")
        # The KV of all guessed tokens but the last is written.
        room = session.sequence.max_length - len(session.history) + 1
        if room < 1 or len(session.history) >= self.engine.info.context_length:
            raise ItemRefused(
                FailureCode.CONTEXT_LENGTH,
                f"{len(session.history)} tokens fill the draft's context of {session.sequence.max_length}",
            )
        if item.max_tokens == 0:
            return Drafted(item.key, NO_PROPOSAL)
        session.work = Guess(min(item.max_tokens, room))
        return None

    def demand(self, session: Session[Guess]) -> Demand:
        """The committed and guessed tokens without KV; without a round, all committed ones but the last."""
        if session.work is None:
            return Demand(session.uncomputed - 1, 0)
        return Demand(session.uncomputed + len(session.work.tokens), 0)

    def last_feed(self, session: Session[Guess]) -> Feed:
        """The rest of the history, or the newest guess; logits for the last of them."""
        assert session.work is not None
        tokens = (session.history + session.work.tokens)[len(session.sequence.cached) :]
        return Feed(session.sequence, tuple(tokens), want_logits=True)

    def finish_step(
        self, sessions: Sequence[Session[Guess]], logits: torch.Tensor, started: float
    ) -> list[tuple[ReplicaPeer, Reply]]:
        """Guess one more token for each session; reply for those that have enough."""
        rows = [DraftRow(s.sampling, len(s.history), tuple(s.work.tokens)) for s in sessions if s.work is not None]
        replies: list[tuple[ReplicaPeer, Reply]] = []
        for session, drafted in zip(sessions, draft_rows(logits, rows), strict=True):
            guess = session.work
            assert guess is not None
            guess.add(drafted)
            # Nothing can follow a stop token.
            if guess.full or drafted.token in session.stop_token_ids:
                session.work = None
                replies.append((session.peer, Drafted(session.key, guess.proposal)))
        return replies
