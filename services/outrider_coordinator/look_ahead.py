"""A session's look-ahead: while a round is verified, the draft already drafts for what it may come to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outrider.acceptance.choice import Choice
from outrider.acceptance.control import DraftControl
from outrider.acceptance.fan_out import BONUS_PRIOR, RECOVERED_PRIOR, RankEstimate, fan_out
from outrider.acceptance.outcomes import OutcomeCache
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.shape import fall_of
from outrider.acceptance.tree import TokenTree
from outrider.protocol.items import DraftedAhead, Foreseen
from outrider.telemetry import metrics
from outrider_coordinator.model_drafter import ModelDrafter
from outrider_coordinator.request import LookAheadMode
from outrider_coordinator.session import Session
from outrider_coordinator.target import TargetBinding


class LookAhead:
    """Begin after a proposal has left, take when its round is committed. A stale outcome finds nothing."""

    def __init__(
        self,
        session: Session,
        drafter: ModelDrafter,
        target: TargetBinding,
        control: DraftControl,
        *,
        mode: LookAheadMode,
        branches: int,
    ) -> None:
        """`branches`: most outcomes to foresee in a round."""
        self._session = session
        self._drafter = drafter
        self._target = target
        self._control = control
        self._mode = mode
        self._branches = branches
        self._recovered, self._bonus = RankEstimate(RECOVERED_PRIOR), RankEstimate(BONUS_PRIOR)
        self.length = 0
        """How many tokens were asked for of each outcome, last."""
        self._siblings: tuple[int, ...] | None = None  # of proposals so long, as decided last; None: not yet
        self._pending: asyncio.Task[OutcomeCache | None] | None = None
        self._round = 0, NO_PROPOSAL.tree  # base length and tree of the round that it works ahead of

    def begin(self, committed: Sequence[int], in_flight: TokenTree, longest: int) -> None:
        """Draft ahead for the round of `in_flight` after `committed`, where that is expected to pay."""
        self._drop()
        length = self._control.look_ahead(longest) if self._is_on() else 0
        if not length:
            return
        if length != self.length:
            self.length, self._siblings = length, None
        wanted = Choice(Source.MODEL, length, self._siblings if self._siblings is not None else self._best_siblings())
        chances = self._control.in_flight(in_flight)
        branches = min(self._branches, self._drafter.most_nodes)
        shape = fan_out(in_flight, chances, self._recovered.chances, self._bonus.chances, branches)
        self._round = len(committed), in_flight
        work = self._foresee(committed, len(committed), in_flight, wanted, shape)
        self._pending = asyncio.create_task(work, name=f"look ahead of session {self._session.number}")

    @property
    def begun(self) -> bool:
        """True while the draft works ahead."""
        return self._pending is not None

    async def take(self, committed: Sequence[int]) -> tuple[Proposal | None, bool | None]:
        """The proposal drafted for what has been committed, and whether there was one; None if none was asked for."""
        if self._pending is None:
            return None, None
        pending, self._pending = self._pending, None
        cache = await pending
        lookup = cache.find(committed) if cache else None
        if lookup is None:
            return None, None
        base, in_flight = self._round
        _, tried, sibling = fall_of(in_flight, committed[base:])
        if sibling is not None:
            self._recovered.record(sibling)
        # What the siblings in flight were is no outcome there: the ranks foreseen begin after theirs.
        rank = lookup.rank if lookup.rank is None or lookup.bonus else lookup.rank + tried
        (self._bonus if lookup.bonus else self._recovered).record(rank)
        hit = lookup.proposal is not None
        self._session.counts.look_ups += 1
        self._session.counts.hits += hit
        metrics.look_ups.add(1, {"result": "hit" if hit else "miss"})
        # An outcome can be foreseen without a token to propose after it, but not by this draft.
        return lookup.proposal or None, hit

    async def close(self) -> None:
        """End what is under way."""
        pending = self._pending
        self._drop()
        if pending is not None:
            await asyncio.gather(pending, return_exceptions=True)

    def _is_on(self) -> bool:
        if self._mode is LookAheadMode.AUTO:
            return self._drafter.may_look_ahead
        return self._mode is LookAheadMode.ON and self._drafter.is_open

    async def _foresee(
        self, committed: Sequence[int], base: int, in_flight: TokenTree, wanted: Choice, shape: tuple[int, ...]
    ) -> OutcomeCache | None:
        reply = await self._drafter.draft_ahead(committed, base, in_flight, wanted, shape)
        if not isinstance(reply, DraftedAhead):
            return None
        drafted = sum(len(each.proposal) for each in reply.foreseen)
        self._session.counts.drafted_ahead += drafted
        metrics.drafted_ahead.add(drafted)
        if self._control.leads:
            self._target.follow_up(
                base,
                in_flight,
                self._still_open(in_flight, reply.foreseen),
                otherwise=NO_PROPOSAL if self._goes_plain(in_flight) else None,
            )
        self._siblings = self._best_siblings()  # once the draft has worked ahead there is time; at a verdict it waits
        return OutcomeCache(base, in_flight, ((f.node, f.next_token, f.proposal) for f in reply.foreseen))

    def _still_open(self, in_flight: TokenTree, foreseen: Sequence[Foreseen]) -> Sequence[Foreseen]:
        """The outcomes that do not end the answer, with proposals no longer than what remains of it."""
        latest = in_flight.depth + 1
        longest, most = self._session.draft_budget_after(latest), self._session.node_budget_after(latest)
        if longest and all(each.proposal.tree.depth <= longest and len(each.proposal) <= most for each in foreseen):
            return foreseen  # the end is far away, as it mostly is
        kept = []
        for each in foreseen:
            count = len(in_flight.path(each.node)) + 1
            budget = self._session.draft_budget_after(count)
            if budget is not None:
                nodes = self._session.node_budget_after(count)
                proposal = each.proposal.clipped(budget, nodes) if budget else NO_PROPOSAL
                kept.append(Foreseen(each.node, each.next_token, proposal))
        return kept

    def _goes_plain(self, in_flight: TokenTree) -> bool:
        ends = self._session.draft_budget_after(in_flight.depth + 1) is None
        return not ends and self._control.misses_go_plain

    def _best_siblings(self) -> tuple[int, ...]:
        return self._control.siblings_ahead(self.length, self._drafter.most_nodes)

    def _drop(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
