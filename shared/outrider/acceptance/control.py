"""Whether and how far one session speculates: what its rounds taught, and when to try again what did not pay.

The formulas are in docs/control.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from outrider.acceptance.choice import (
    NO_WINDOW,
    NOTHING_BESIDE,
    PLAIN,
    Beside,
    Choice,
    ahead_length,
    can_pay,
    choose,
    expected_accepted,
    rate,
    with_siblings,
)
from outrider.acceptance.costs import CostTable, RoundCosts
from outrider.acceptance.estimate import MODEL_PRIOR, AcceptanceEstimate
from outrider.acceptance.node_budget import ALONE, NodeBudget
from outrider.acceptance.policy import Policy
from outrider.acceptance.pools import PRIORS, Pools
from outrider.acceptance.probes import RETURN, Probes
from outrider.acceptance.proposal import Source
from outrider.acceptance.round import Round
from outrider.acceptance.shape import Gains, chances_in_flight, expected, gains, siblings, widths_of
from outrider.acceptance.siblings import SiblingEstimate
from outrider.acceptance.tree import TokenTree
from outrider.acceptance.window import AcceptanceWindow

MAX_NODES = 63
"""Most proposed tokens of a round, where nothing else limits them: what replicas take unless told otherwise."""


class DraftControl:
    """One session's choices, round by round: `decide`, then `record` what came of it."""

    def __init__(
        self,
        costs: RoundCosts,
        policy: Policy,
        pools: Pools | None = None,
        budget: NodeBudget | None = None,
        *,
        in_step: bool = False,
        ahead: bool = False,
    ) -> None:
        """`costs`, `pools` and `budget` are shared by all sessions of the coordinator, if there are several.

        `in_step`: a verifier drafts for all sessions of a step at once; `ahead`: before it tells of the step before.
        """
        self.fallback_reason = ""  # why speculation was last given up
        self._costs = costs
        self._policy = policy
        self._window = AcceptanceWindow(policy.fallback_window, policy.fallback_acceptance)
        self._pools = pools = pools or Pools()
        self._in_step, self.ahead = in_step, ahead
        self._estimates = {source: AcceptanceEstimate(pool) for source, pool in pools.acceptance.items()}
        self._siblings = SiblingEstimate(pools.siblings)
        self._budget = NodeBudget() if budget is None else budget
        self._budget.join(self)
        pools.consensus.join(self._estimates[Source.MODEL])
        self._longest = 0  # most tokens that the round in progress might have proposed
        self._probes = {source: Probes() for source in PRIORS}
        self._begun = self._fallen = False  # a round has ended; it guesses no more
        self._levels: Mapping[Source, int] = {}  # of the round in progress
        self._choice = PLAIN  # of the round in progress
        self._previous: Choice | None = None  # what the costs last decided, without siblings
        self._nodes = MAX_NODES  # most proposed tokens of the round in progress
        self._probed: Source | None = None  # what the last decision probes, if that round has not begun
        self._beside_probe = False  # what is being decided comes after a probe, and is none

    def decide(self, levels: Mapping[Source, int], longest: int, at_hand: int = 0, nodes: int = MAX_NODES) -> Choice:
        """The choice for a round of at most `longest` proposed tokens one after another, and `nodes` in all.

        `levels` has the sources that can propose now, with the level of their first token (`AcceptanceEstimate`).
        `at_hand`: so many tokens of the model were drafted ahead and cost nothing any more; 0: none were.
        """
        if self._in_step and not self._begun and Source.MODEL not in levels:
            levels = {}  # a verifier to be: what it drafts is not there yet, and n-grams would bring it out of step
        self._choose_for(levels, longest, at_hand, nodes, steady=False)
        self._begin_probe()
        return self._choice

    def decide_next(self, levels: Mapping[Source, int], longest: int, nodes: int = MAX_NODES) -> Choice | None:
        """The choice for the rounds after the one in progress, whatever comes of that; `went_on` begins each.

        It may stand for many, so none is made that the window of acceptance would not bear for long. Beside a probe it
        is what would be done without; or None, as it depends, where that can be said later.
        """
        pending, in_progress = self._probed, (self._levels, self._choice)
        under_way = any(probes.under_way for probes in self._probes.values())
        if under_way and not self.ahead:
            return None
        beside = self._beside_probe = self.ahead and (under_way or pending is not None)
        self._choose_for(levels, longest, 0, nodes, steady=True)
        decided, (self._levels, self._choice) = self._choice, in_progress
        self._probed, self._beside_probe = pending if beside else self._probed, False
        return decided

    @property
    def settled(self) -> bool:
        """True if what was decided last may stand: neither a probe, nor beside one, nor there to learn something."""
        probing = self._probed or any(probes.under_way for probes in self._probes.values())
        if probing or self._policy.fixed_length or self._previous == PLAIN:
            return not probing  # what plain rounds take is seen only where several follow each other
        return self._costs.settled and (self._pools.consensus.known or not self._shares_drafting)

    def went_on(self, levels: Mapping[Source, int], choice: Choice) -> None:
        """The choice of this round had been made before: the verifier was told."""
        self._levels, self._choice = {Source.MODEL: 1, **levels}, choice
        if choice.source is self._probed:  # else what was decided last comes after what was ordered before
            self._begin_probe()

    def rests(self, levels: Mapping[Source, int], longest: int) -> bool:
        """Whether it would decide for a plain round now, with nothing to learn or to probe; decides nothing."""
        if not levels or longest < 1:
            return True
        if self._policy.fixed_length or not all(map(self._costs.known, levels)):
            return False
        if not self._costs.known(Source.NONE):
            return True  # its time is what is to be learned
        costs = self._costs.table(longest + self._policy.max_siblings)
        chances = {source: self._estimates[source].chances(level, longest) for source, level in levels.items()}
        if not self._fallen and self._choose(costs, chances) != PLAIN:
            return False
        return self._due(costs, levels, longest, PLAIN, rate(costs, PLAIN)) is None

    @property
    def leads(self) -> bool:
        """Whether the model is what this request's next rounds would take: n-grams are not better for it now."""
        return self._choice.source is not Source.NGRAM

    @property
    def misses_go_plain(self) -> bool:
        """Whether a plain round is better than to wait for a fresh guess, where the outcome was not foreseen."""
        if not (self._costs.known(Source.NONE) and self._costs.known(Source.MODEL)) or self._policy.fixed_length:
            return False
        costs = self._costs.table(len(MODEL_PRIOR))
        chances = {Source.MODEL: self._estimates[Source.MODEL].chances(1, len(MODEL_PRIOR))}
        return choose(costs, chances, NO_WINDOW) == PLAIN

    def look_ahead(self, longest: int) -> int:
        """How many tokens to draft ahead for each likely outcome of the round just decided; 0: none pay.

        It takes a round no time where verification hides it; what rounds take was seen from verdict to verdict. Where
        the outcome is not foreseen, a fresh guess is asked for, or the round is plain.
        """
        if self._fallen or Source.MODEL not in self._levels or longest < 1:
            return 0
        if self._policy.fixed_length:
            return longest
        if not (self._costs.known(Source.NONE) and self._costs.known_ahead):
            return self._costs.lesson(Source.MODEL, longest)
        costs = self._costs.table(longest)
        expected = expected_accepted(self._estimates[Source.MODEL].chances(1, longest))
        best = ahead_length(costs, expected, self._costs.hit_rate, self._pools.ahead_length)
        self._pools.ahead_length = best or self._pools.ahead_length
        return best

    def demand(self) -> Gains:
        """What the last round's proposal could have had at most, of the better source; see `NodeBudget`."""
        tables = [
            gains(
                self._estimates[source].chances(level, self._longest),
                self._siblings.chances if source is Source.MODEL and self._policy.max_siblings else (),
            )
            for source, level in self._levels.items()
        ]
        return max(tables, key=lambda table: sum(row[0] for row in table), default=())

    def close(self) -> None:
        """The session has ended."""
        self._budget.leave(self)
        self._pools.consensus.leave(self._estimates[Source.MODEL])

    def siblings_ahead(self, length: int, nodes: int = MAX_NODES) -> tuple[int, ...]:
        """The siblings of proposals of `length` that are drafted ahead, `nodes` with them at most; see `Choice`."""
        if self._policy.always_siblings:
            return self._always(Choice(Source.MODEL, length), nodes).siblings
        if not self._policy.max_siblings or self._policy.fixed_length or not self._costs.slack.is_there:
            return ()
        if not (self._costs.known(Source.NONE) and self._costs.known_ahead):  # as many sessions may be new here
            return ()
        more, chances = self._beside(nodes), self._estimates[Source.MODEL].chances(1, length)
        costs = self._costs.table(length + self._policy.max_siblings)
        hidden = replace(costs, draft_ms=(0.0,) * len(costs.draft_ms))
        table = gains(chances, more.others)
        count, _ = with_siblings(hidden, Choice(Source.MODEL, length), table, more, self._budget.price)
        return siblings(count, table, length)

    def in_flight(self, tree: TokenTree) -> tuple[float, ...]:
        """The chance that each token of the last choice's proposal stands, given that the one it follows does."""
        if self._choice.source is Source.NONE:
            return ()
        source = self._choice.source
        firsts = self._estimates[source].chances(self._levels[source], tree.depth)
        return chances_in_flight(tree, firsts, self._siblings.chances)

    def record(self, result: Round) -> bool:
        """Take in what came of the last choice. True if it made the request fall back to plain decoding."""
        self._begun = True
        source = self._choice.source if result.proposed else Source.NONE
        self._budget.record(self, result.rows, result.sessions, result.verify_ms, result.propose_ms)
        if result.verify_ms is not None:
            nodes = result.proposed + result.beside
            self._costs.observe_verify(nodes, result.verify_ms, result.rows, result.sessions)
        if result.propose_ms is not None and (source is Source.MODEL or (self._in_step and result.drafted)):
            self._costs.observe_draft(result.drafted or result.proposed, result.propose_ms, result.sessions)
        self._pools.consensus.saw(result)
        if result.foreseen is not None:
            guessed_ms = result.period_ms if result.proposed else None  # plain rounds say nothing of others
            self._costs.observe_lookup(result.ahead, result.foreseen, guessed_ms, result.step_ms)
        for each, probes in self._probes.items():
            # A guess that was under way when the request fell back says nothing of whether to come back.
            counts = each is source and (probes.under_way or not self._fallen)
            probes.advance(result.committed, result.accepted if counts else None)
        if source is Source.NONE:
            return False
        firsts = result.accepted - (result.stood is not None)
        self._estimates[source].record(self._levels[source], result.proposed, firsts)
        if source is Source.MODEL and firsts < result.proposed:
            self._siblings.record(result.tried, result.stood)
        return not self._policy.fixed_length and self._judge(source, result)

    def _choose_for(
        self, levels: Mapping[Source, int], longest: int, at_hand: int, nodes: int, *, steady: bool
    ) -> None:
        self._levels, self._probed = levels, None
        self._nodes, self._longest = nodes, longest
        self._costs.at_load(self._budget.together, self._budget.own)
        at_hand = min(at_hand, longest)
        self._choice = self._decide(longest, at_hand, steady) if levels and longest > 0 else PLAIN

    def _begin_probe(self) -> None:
        """The round that was decided for begins: if it is a probe, it is under way."""
        source, self._probed = self._probed, None
        if source is not None and self._probes[source].begin():
            self._estimates[source].fade()

    def _fixed(self, longest: int, at_hand: int) -> Choice:
        """As much as is allowed; of the sources at hand, that whose guess should bring more."""
        lengths = {source: at_hand if at_hand and source is Source.MODEL else longest for source in self._levels}

        def brings(source: Source) -> float:
            return expected_accepted(self._estimates[source].chances(self._levels[source], lengths[source]))[-1]

        best = max(lengths, key=brings) if len(lengths) > 1 else next(iter(lengths))
        return self._always(Choice(best, lengths[best]), self._nodes)

    def _decide(self, longest: int, at_hand: int, steady: bool) -> Choice:
        if self._policy.fixed_length:
            return self._fixed(longest, at_hand)
        chances = {source: self._estimates[source].chances(level, longest) for source, level in self._levels.items()}
        if at_hand and Source.MODEL in chances:
            chances[Source.MODEL] = chances[Source.MODEL][:at_hand]
        # Until the costs are known, rounds are there to learn them.
        to_learn = [source for source in self._levels if not (at_hand and source is Source.MODEL)]
        if unknown := next((source for source in to_learn if not self._costs.known(source)), None):
            return self._always(Choice(unknown, self._costs.lesson(unknown, longest)), self._nodes)
        if not self._costs.known(Source.NONE):
            return PLAIN
        costs = self._costs.table(longest + self._policy.max_siblings)
        if at_hand:
            costs = replace(costs, draft_ms=(0.0,) * len(costs.draft_ms))
        choice = PLAIN if self._fallen else self._choose(costs, chances, steady=steady)
        self._previous = choice.chain
        held = PLAIN if choice.vote == 0 else choice
        accepted = self._expected(held, chances[held.source]) if held != PLAIN else 0.0
        if probe := self._probe(costs, longest, held, rate(costs, held, accepted)):
            return probe
        if choice == PLAIN:
            return choice
        length = self._costs.survey(choice.length, len(chances[choice.source]))
        beside = choice.siblings[:length]
        while beside and length + sum(beside) > self._nodes:
            beside = beside[:-1]
        return replace(choice, length=length, siblings=beside)

    def _choose(self, costs: CostTable, chances: Mapping[Source, Sequence[float]], *, steady: bool = False) -> Choice:
        beside = {Source.MODEL: self._beside(self._nodes)} if self._policy.max_siblings else NOTHING_BESIDE
        vote = None
        if self._shares_drafting and (own := chances.get(Source.MODEL)):
            estimate, together = self._estimates[Source.MODEL], self._budget.together
            costs, own, vote = self._pools.consensus.shared(costs, own, estimate, together, self._window)
            chances, steady = {**chances, Source.MODEL: own}, False
            beside = beside if self._policy.always_siblings else NOTHING_BESIDE  # all of a step would wait for them
        choice = choose(costs, chances, self._window, self._previous, beside, self._budget.price, steady=steady)
        return replace(choice, vote=vote) if choice.source is Source.MODEL and not choice.siblings else choice

    @property
    def _shares_drafting(self) -> bool:
        return self._in_step and self._budget.together >= ALONE

    def _beside(self, nodes: int) -> Beside:
        return Beside(self._siblings.chances, self._policy.max_siblings, nodes, self._policy.always_siblings)

    def _expected(self, choice: Choice, chances: Sequence[float]) -> float:
        return expected(widths_of(choice.length, choice.siblings), gains(chances, self._siblings.chances))

    def _always(self, choice: Choice, nodes: int) -> Choice:
        """With siblings, where the policy wants them whatever they cost."""
        if not self._policy.always_siblings or choice.source is not Source.MODEL:
            return choice
        more, chances = self._beside(nodes), self._estimates[Source.MODEL].chances(1, choice.length)
        table, count = gains(chances, more.others), more.room(choice.length)
        return replace(choice, siblings=siblings(count, table, choice.length))

    def _probe(self, costs: CostTable, longest: int, choice: Choice, best_rate: float) -> Choice | None:
        """One token of a source that was passed over, if its turn has come, to see whether things have changed."""
        due = None if self._beside_probe else self._due(costs, self._levels, longest, choice, best_rate)
        source = self._probed = due
        return None if source is None else Choice(source, 1)

    def _due(
        self, costs: CostTable, levels: Mapping[Source, int], longest: int, choice: Choice, best_rate: float
    ) -> Source | None:
        waiting = self._budget.together if self._shares_drafting else 1.0
        for source in levels:
            due = self._probes[source].due(best_rate * costs.round_ms(source, 1) - 1.0, waiting)
            if due and source is not choice.source and can_pay(costs, source, longest):
                return source
        return None

    def _judge(self, source: Source, result: Round) -> bool:
        """Fall back where the window says so; come back where a probe says that the source is good enough again."""
        limit = self._policy.fallback_acceptance
        if self._fallen:
            chance = self._estimates[source].chances(self._levels[source], 1)[0]
            self._fallen = chance < limit or self._probes[source].stood < RETURN
            return False
        self._window.add(result.proposed, result.accepted, fell=result.fell)
        if not self._window.too_low:
            return False
        self.fallback_reason = (
            f"{self._window.acceptance:.0%} of the last {self._policy.fallback_window} guessed tokens stood, of those "
            f"that were tried, and less than {limit:.0%} makes a request fall back"
        )
        self._fallen = True
        self._window.clear()
        for probes in self._probes.values():
            probes.rest()
        return True
