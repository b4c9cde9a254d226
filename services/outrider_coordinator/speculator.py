"""A session's speculation: asks the chosen drafter for as many tokens as were chosen, and learns from how it went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from outrider.acceptance.choice import Choice
from outrider.acceptance.control import MAX_NODES, DraftControl
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.round import Round
from outrider.acceptance.shape import fall_of, pruned, widths_of
from outrider.protocol.items import DraftFirst, Step
from outrider.telemetry import metrics
from outrider.telemetry.logs import get_logger
from outrider_coordinator.drafters import Drafter, OwnDrafter
from outrider_coordinator.judged import Judged
from outrider_coordinator.look_ahead import LookAhead
from outrider_coordinator.orders import Checked, Order, deepest
from outrider_coordinator.session import Delta, Session

log = get_logger(__name__)

STANDS = 5
"""Most rounds for which it stands what follows by itself: a verifier is never kept waiting, and deciding takes a while.

More would save little more, and what was learned meanwhile would be heeded later.
"""


class Speculator:
    """The session's drafters, and the control that chooses among them. Without any drafter: plain decoding."""

    def __init__(
        self,
        session: Session,
        control: DraftControl,
        drafters: Mapping[Source, Drafter],
        *,
        look_ahead: LookAhead | None = None,
        own_draft: OwnDrafter | None = None,
        most_nodes: Callable[[], int] = lambda: MAX_NODES,
        reason: str = "",
    ) -> None:
        """`own_draft`: of `drafters` the one that drafts within the rounds. `most_nodes`: what the replicas take.

        `reason`: why there are no drafters, where the request asked for some.
        """
        self._most_nodes = most_nodes
        self._look_ahead = look_ahead
        self._own_draft = own_draft
        self._drafted_ahead = 0  # tokens for each outcome of the round before, if anything had been
        self._foreseen: bool | None = None  # the round in progress had been foreseen; None: nothing had been drafted
        self._session = session
        self._control = control
        self._drafters = drafters
        self._reason = reason
        self._levels: dict[Source, int] = {}  # of the round in progress, as is the next
        self._longest = self._most = 0
        self._up_to_date = False  # the drafter of the round in progress had nothing to catch up

    @property
    def fallback_reason(self) -> str:
        """Why speculation stopped, last or for good; empty if it never did."""
        reasons = (self._reason, self._control.fallback_reason, *(d.fallback_reason for d in self._drafters.values()))
        return next(filter(None, reasons), "")

    async def propose(self, committed: Sequence[int], max_tokens: int, promised: Checked | None = None) -> Checked:
        """A proposal of at most `max_tokens` tokens, or `NO_PROPOSAL` where none is expected to pay.

        It may be left to the verifier to draft it.

        `promised`: what the verifier checks already.
        """
        self._drafted_ahead = self._look_ahead.length if self._look_ahead else 0
        ahead, self._foreseen = await self._look_ahead.take(committed) if self._look_ahead else (None, None)
        levels: dict[Source, int] = {}
        self._most = self._most_nodes() if max_tokens and self._drafters else 0
        max_tokens = min(max_tokens, self._most)
        if max_tokens:
            levels = {source: level for source, each in self._drafters.items() if (level := each.level(committed))}
        self._levels, self._longest = levels, max_tokens
        if promised is not None:
            return await self._go_on(committed, promised)
        nodes = min(self._session.node_budget_after(0), self._most) if levels else 0
        choice = self._control.decide(levels, max_tokens, ahead.tree.depth if ahead else 0, nodes)
        if not choice.length:
            return NO_PROPOSAL
        if ahead and choice.source is Source.MODEL:
            self._up_to_date = False  # it took no time, which says nothing of a proposal that is asked for
            clipped = ahead.clipped(choice.length)
            return replace(clipped, tree=pruned(clipped.tree, widths_of(choice.length, choice.siblings)))
        drafter = self._drafters[choice.source]
        self._up_to_date = drafter.up_to_date(committed, max_tokens)
        return await drafter.propose(committed, choice)

    def look_ahead(self, committed: Sequence[int], wanted: Checked, max_tokens: int) -> None:
        """`wanted`, after `committed`, is about to be verified: let the draft work on meanwhile."""
        if isinstance(wanted, DraftFirst):
            return
        if self._look_ahead is not None:
            self._look_ahead.begin(committed, wanted.tree, min(max_tokens, self._longest))

    def following(self, committed: Sequence[int], wanted: Checked, standing: Order | None = None) -> Order | None:
        """What follows the round of `wanted`, whatever comes of it; None: that depends on it, or nothing remains then.

        `standing`: what follows first, as was said before.

        A plain round follows where this one had better be plain too: what n-grams then find is proposed a round later,
        which costs less than to keep the verifier waiting in every plain round. Where the verifier drafts by itself,
        what would be chosen now is what follows, for a while unless it is a probe. Where a draft works ahead, its table
        says it.
        """
        if self._look_ahead is not None and self._look_ahead.begun:
            return None
        if (
            self._control.ahead
        ):  # the verifier knows where the answer ends, and nothing is said in time that waits for it
            count = 1 + (standing.rounds if standing else 0)
        else:
            count = 1 + deepest(wanted) + (standing.rounds * (1 + deepest(standing.then)) if standing else 0)
        longest = self._session.draft_budget_after(count)
        if longest is None or (standing and longest < deepest(standing.then) and not self._control.ahead):
            return None  # towards the end of the answer it is better known later how much remains
        if self._own_draft is None or not self._own_draft.level(committed):
            if not self._control.rests(self._levels, self._longest):
                return None
            # What n-grams find, or a draft that comes back, is wanted soon.
            alone = self._look_ahead is None and Source.NGRAM not in self._drafters
            return self._order(NO_PROPOSAL, count, stands=alone)
        nodes = min(self._session.node_budget_after(count), self._most)
        choice = self._control.decide_next({**self._levels, Source.MODEL: 1}, min(longest, self._most), nodes)
        if choice is None or choice.source is Source.NGRAM:
            return None
        then = DraftFirst(choice.length, choice.siblings, choice.vote) if choice.length else NO_PROPOSAL
        return self._order(then, count, stands=self._control.settled)

    def _order(self, then: Checked, count: int, *, stands: bool) -> Order:
        """For as many rounds as surely fit into the answer, once the rounds before have committed `count` tokens.

        Or as may be in it, where the verifier goes ahead.
        """
        if not stands:
            return Order(then)
        each = 1 if self._control.ahead else deepest(then) + 1
        last = max(each, each - 1 + sum(then.siblings)) if isinstance(then, DraftFirst) else each
        return Order(then, max(1, min(STANDS, 1 + (self._session.node_budget_after(count) - last) // each)))

    def learn(self, judged: Judged, delta: Delta, *, propose_ms: float, verify_ms: float, period_ms: float) -> None:
        """Take in how a round went, and how long its two parts took in milliseconds; all from the verdict before on."""
        if self._session.finish is not None:
            return  # what stands after the end of the answer was never decided
        proposal, step = judged.proposal, judged.step
        depth = proposal.tree.depth
        _, tried, stood = fall_of(proposal.tree, delta.token_ids)
        first = self._session.counts.rounds <= 1  # it held the prefill
        result = Round(
            proposed=depth,
            accepted=delta.accepted,
            committed=len(delta.token_ids),
            propose_ms=propose_ms if self._drafting_tells(step, guessed=depth > 0) else None,
            # One that has waited says nothing of those that follow each other.
            verify_ms=None if first or step.waited else verify_ms,
            foreseen=self._foreseen,
            ahead=self._drafted_ahead,
            period_ms=None if first else period_ms,
            step_ms=judged.step_ms,
            rows=step.rows,
            sessions=step.sessions,
            drafted=None if self._own_draft is None else max(depth, step.draft_depth),
            beside=len(proposal) - depth,
            tried=tried,
            stood=stood,
            tally=step.tally,
        )
        if self._control.record(result):
            log.warning("session %d falls back to plain decoding: %s", self._session.number, self.fallback_reason)
            metrics.fallbacks.add(1, {"cause": "acceptance"})

    def _drafting_tells(self, step: Step, *, guessed: bool) -> bool:
        """Whether how long the round's drafting took, for this session or for others, says what it takes."""
        if self._own_draft is None or not step.sessions:
            return self._up_to_date
        return step.draft_depth > 0 and not step.draft_prompt_rows and (self._up_to_date or not guessed)

    async def _go_on(self, committed: Sequence[int], promised: Checked) -> Checked:
        """A round that the verifier has begun by itself, as it was told in the one before."""
        self._up_to_date = False
        if isinstance(promised, Proposal):
            self._control.went_on(self._levels, Choice(promised.source, promised.tree.depth))
            return promised
        choice = Choice(Source.MODEL, promised.max_tokens, promised.siblings, promised.vote)
        self._control.went_on(self._levels, choice)
        if self._own_draft is not None:
            self._up_to_date = self._own_draft.up_to_date(committed, self._longest)
            await self._own_draft.propose(committed, choice)
        return promised

    async def close(self) -> None:
        """Free what the drafters hold."""
        self._control.close()
        if self._look_ahead is not None:
            await self._look_ahead.close()
        for drafter in self._drafters.values():
            await drafter.close()
