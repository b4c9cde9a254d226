"""The draft's rounds: guess tokens one after another, all sessions side by side, now or ahead of the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.acceptance.tree import validate_tree
from outrider.engine.batch import Feed
from outrider.engine.core import ReplicaCore
from outrider.engine.engine import Engine
from outrider.engine.foresight import Foresight
from outrider.engine.guess import Drafting, DraftSession, Growing, Guess
from outrider.engine.runner import Chains
from outrider.engine.schedule import Demand
from outrider.engine.sessions import ItemRefused, ReplicaPeer, Reply
from outrider.errors import InvalidArgument
from outrider.protocol.items import DraftAhead, Drafted, DraftedAhead, FailureCode, Propose, Verify
from outrider.sampling.distribution import UnusableLogits
from outrider.sampling.draft import DraftRow, draft_rows
from outrider.sampling.plain import MOST_BESIDE, is_plain
from outrider.sampling.ranking import rank_rows

Found = TypeVar("Found")


class DraftCore(ReplicaCore[Drafting]):
    """A session's work is its guess, or its proposals drafted ahead, so far."""

    def __init__(self, engine: Engine, *, max_proposal: int, lease_s: float) -> None:
        """See ReplicaCore."""
        super().__init__(engine, max_proposal=max_proposal, lease_s=lease_s)
        engine.prepare_chains()

    def start_round(self, session: DraftSession, item: Verify | Propose | DraftAhead) -> Reply | None:
        """Begin to guess; the proposal comes from a later step."""
        assert not isinstance(item, Verify)
        if item.max_tokens > self.max_proposal:
            raise InvalidArgument("max_tokens", item.max_tokens, f"at most {self.max_proposal}")
        self._check_siblings(session, item)
        if len(session.history) >= self.engine.info.context_length:
            raise _outgrown(session)
        return self._look_ahead(session, item) if isinstance(item, DraftAhead) else self._guess(session, item)

    def demand(self, session: DraftSession) -> Demand:
        """What the work wants; without a round, all committed tokens but the last."""
        return session.work.demand(session) if session.work else Demand(session.uncomputed - 1, 0)

    def last_feed(self, session: DraftSession) -> Feed:
        """What the work wants."""
        assert session.work is not None
        return session.work.feed(session)

    def finish_step(
        self, sessions: Sequence[DraftSession], logits: torch.Tensor, started: float
    ) -> list[tuple[ReplicaPeer, Reply]]:
        """One more token for each guess and each branch, or many at once; reply for those that have enough."""
        if (chains := self._chains(sessions, logits)) is not None:
            return self._take_chains(sessions, chains)
        rows = [session.work.rows(session) for session in sessions if session.work]
        ranks = [session.work.ranks for session in sessions if session.work]
        ranked = _by_session(partial(rank_rows, most=max(ranks)), [rank > 0 for rank in ranks], rows, logits)
        drafted = _by_session(draft_rows, [rank == 0 for rank in ranks], rows, logits)
        replies: list[tuple[ReplicaPeer, Reply]] = []
        for index, session in enumerate(sessions):
            work = session.work
            assert work is not None
            if index in ranked:
                work.take_ranked(session, ranked[index])
            else:
                work.take(session, drafted[index])
            if reply := work.reply(session):
                session.work = None
                replies.append((session.peer, reply))
        return replies + self._grow(sessions)

    def _chains(self, sessions: Sequence[DraftSession], logits: torch.Tensor) -> Chains | None:
        """As many tokens for each session as all of them want, without the host between; None if that cannot be.

        Raises UnusableLogits.
        """
        guesses = [session.work for session in sessions if isinstance(session.work, Guess)]
        if len(guesses) < len(sessions) or not all(is_plain(session.sampling) for session in sessions):
            return None
        steps = min(guess.steps_left for guess in guesses)
        if steps < 2 or max(guess.most_siblings for guess in guesses) > MOST_BESIDE:
            return None
        sequences = [session.sequence for session in sessions]
        chains = self.engine.chains(sequences, [session.sampling for session in sessions], logits, steps)
        if chains is None:
            return None
        bad = {place for row in chains.scores for place, score in enumerate(row) if not math.isfinite(score)}
        if bad:
            raise UnusableLogits(sorted(bad))
        return chains

    def _take_chains(self, sessions: Sequence[DraftSession], chains: Chains) -> list[tuple[ReplicaPeer, Reply]]:
        replies: list[tuple[ReplicaPeer, Reply]] = []
        ranked = chains.ranked
        for place, session in enumerate(sessions):
            work = session.work
            assert isinstance(work, Guess)
            for row in ranked:
                work.growing.add_next(row[place])
                if reply := work.reply(session):
                    session.work = None
                    replies.append((session.peer, reply))
                    break
        return replies

    def _grow(self, sessions: Sequence[DraftSession]) -> list[tuple[ReplicaPeer, Reply]]:
        """Take the branches of those who draft ahead as far as all of them want, if it can be without the host between.

        Sessions in which nothing can be drawn fail.
        """
        ahead = [(each, each.work) for each in sessions if isinstance(each.work, Foresight) and is_plain(each.sampling)]
        ahead = [(each, work) for each, work in ahead if work.steps_left and work.most_siblings <= MOST_BESIDE]
        if not ahead:
            return []
        steps = min(work.steps_left for _, work in ahead)
        growths = [work.growth(session) for session, work in ahead]
        if (chains := self.engine.grow(growths, steps)) is None:
            return []
        replies: list[tuple[ReplicaPeer, Reply]] = []
        ranked, stop = chains.ranked, 0
        for entry, ((session, work), growth) in enumerate(zip(ahead, growths, strict=True)):
            start, stop = stop, stop + len(growth.newest)
            if not all(math.isfinite(score) for row in chains.scores for score in row[start:stop]):
                replies.append(self.fail(session, UnusableLogits([entry])))
                continue
            work.take_grown(session, [row[start:stop] for row in ranked])
            if reply := work.reply(session):
                session.work = None
                replies.append((session.peer, reply))
        return replies

    def _check_siblings(self, session: DraftSession, item: Propose | DraftAhead) -> None:
        if not item.siblings:
            return
        if session.sampling.rule is not Rule.MATCH:
            raise InvalidArgument("siblings", item.siblings, f"empty under the {session.sampling.rule} rule")
        if len(item.siblings) > item.max_tokens:
            raise InvalidArgument("siblings", len(item.siblings), f"at most max_tokens, {item.max_tokens}, numbers")
        if (nodes := item.max_tokens + sum(item.siblings)) > self.max_proposal:
            raise InvalidArgument("max_tokens and siblings", nodes, f"at most {self.max_proposal} in all")

    def _guess(self, session: DraftSession, item: Propose) -> Reply | None:
        # The KV of all guessed tokens but the last is written.
        room = session.sequence.max_length - len(session.history) + 1
        if room < 1:
            raise _outgrown(session)
        if item.max_tokens == 0:
            return Drafted(item.key, NO_PROPOSAL)
        session.work = Guess(min(item.max_tokens, room), Growing(item.siblings))
        return None

    def _look_ahead(self, session: DraftSession, item: DraftAhead) -> Reply | None:
        size = len(item.in_flight)
        validate_tree(item.in_flight, vocabulary_size=session.sampling.vocabulary_size, max_nodes=self.max_proposal)
        if len(item.branches) != size + 1:
            raise InvalidArgument("draft_ahead.branches", len(item.branches), f"{size + 1} numbers, one an outcome")
        if sum(item.branches) > self.max_proposal:
            raise InvalidArgument("draft_ahead.branches", sum(item.branches), f"at most {self.max_proposal} in all")
        # Outcomes that leave no room to guess are not worth foreseeing.
        room = session.sequence.max_length - len(session.history) - size
        branches = min(sum(item.branches), room // max(item.max_tokens, 1))
        if item.max_tokens == 0 or branches < 1:
            return DraftedAhead(item.key, ())
        session.work = Foresight(item, item.max_tokens, branches)
        return None


def _by_session(
    of: Callable[[torch.Tensor, Sequence[DraftRow]], Sequence[Found]],
    chosen: Sequence[bool],
    rows: Sequence[Sequence[DraftRow]],
    logits: torch.Tensor,
) -> dict[int, list[Found]]:
    """What `of` makes of the rows of the chosen sessions, by session. Raise UnusableLogits naming sessions."""
    owners = [index for index, each in enumerate(rows) if chosen[index] for _ in each]
    if not owners:
        return {}
    if not all(chosen):
        places = [row for row, index in enumerate(i for i, each in enumerate(rows) for _ in each) if chosen[index]]
        logits = logits[torch.tensor(places, device=logits.device)]
    try:
        found = of(logits, [row for index, each in enumerate(rows) if chosen[index] for row in each])
    except UnusableLogits as error:
        raise UnusableLogits(sorted({owners[entry] for entry in error.entries})) from error
    results: dict[int, list[Found]] = {}
    for index, result in zip(owners, found, strict=True):
        results.setdefault(index, []).append(result)
    return results


def _outgrown(session: DraftSession) -> ItemRefused:
    return ItemRefused(
        FailureCode.CONTEXT_LENGTH,
        f"{len(session.history)} tokens fill the draft's context of {session.sequence.max_length}",
    )
