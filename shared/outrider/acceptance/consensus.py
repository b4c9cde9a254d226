"""How deep the sessions of a step are drafted for, where the verifier drafts for all of them at once.

Every session of such a step waits until the deepest guess is made. So a guess deeper than the others' costs all of them
its last tokens, one that ends before them saves nothing, and the first one of all costs the whole of drafting. What
pays is decided for all together: by what is known of all sessions, as if each were like their average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice, pairwise, takewhile
from operator import mul

from outrider.acceptance.choice import (
    BEGIN_MARGIN,
    NO_WINDOW,
    PLAIN,
    STAY_MARGIN,
    Choice,
    expected_accepted,
    expected_tried,
    rate,
)
from outrider.acceptance.costs import CostTable
from outrider.acceptance.estimate import AcceptanceEstimate, AcceptancePool
from outrider.acceptance.proposal import Source
from outrider.acceptance.round import Round
from outrider.acceptance.window import AcceptanceWindow

DEEPEST = 8
"""Deepest guess that is thought of."""
EARLIER = 3.0
"""How many sessions it is worth at most what earlier ones have seen."""
SHARED_MARGIN = 0.02
"""By so much faster than elsewhere guesses must be expected to be: not all sessions are like their average."""
FLAT, TURN = 0.015, 0.01
"""The shallowest guess is made that is slower by no more than this fraction than the best, and how much less, or more,
it must be for another one to be taken: coordinators cannot talk, and each waits for the deepest of all.
"""
RECENT = 8.0
"""Passes that say how many of a step's sessions guess."""
ALONE_FOR, AWAY_FOR = 16.0, 512.0
"""Passes after which a coordinator gives up guessing where others do not guess, and for which it does not begin."""

PIONEERS = 8
"""Sessions of a step that guess, if guesses pay at all, until what they see is known: all others wait for them."""
KNOWN = 0.4
"""How well the pool must know it."""
WILLING = 2
"""By so many tokens more than it votes for a session may be drafted for, where more of the others want it."""


class Consensus:
    """One for all sessions of a coordinator."""

    def __init__(self, pool: AcceptancePool) -> None:
        """`pool`: what earlier sessions have seen of the draft."""
        self._pool = pool
        self._depth = 0
        self._stands_for = 0
        self._passes = 0.0
        self._own_use = self._others_use = 0.0  # how much they proposed lately of what could have been drafted for them
        self._alone_since = 0.0  # the pass in which others were last seen to guess too, or nobody did
        self._away_until = 0.0  # the pass until which guesses are not begun here
        self._sessions: dict[AcceptanceEstimate, None] = {}  # in the order in which they came

    def join(self, estimate: AcceptanceEstimate) -> None:
        """Take part."""
        self._sessions[estimate] = None

    def leave(self, estimate: AcceptanceEstimate) -> None:
        """No longer."""
        self._sessions.pop(estimate, None)

    def saw(self, result: Round) -> None:
        """A session's round has ended: what it and the others of its pass proposed of what was drafted."""
        if result.drafted is None or not result.sessions:
            return
        drafted, sessions = result.drafted, result.sessions
        own = max(1, len(self._sessions))
        if result.tally.tried and sessions > own:  # each of our sessions is told of it, and has told of its own guesses
            self._pool.hear(result.tally, (sessions - own) / sessions / own)
        self._passes += 1.0 / own
        used = min(1.0, result.proposed / drafted) if drafted else 0.0
        self._own_use += (used - self._own_use) / (RECENT * own)
        if sessions <= own:
            self._others_use = self._own_use
        else:
            by_all = min(1.0, (result.rows - sessions) / (drafted * sessions)) if drafted else 0.0
            others = max(0.0, (by_all * sessions - self._own_use * own) / (sessions - own))
            self._others_use += (others - self._others_use) / (RECENT * own)
        if not self._depth or self._others_use >= 0.5 * self._own_use:
            self._alone_since = self._passes

    def depth(
        self,
        costs: CostTable,
        longest: int,
        session: AcceptanceEstimate,
        together: float,
        window: AcceptanceWindow = NO_WINDOW,
    ) -> int:
        """Most tokens that a session's guess should have now; 0: none should be made.

        It is decided anew once every session may have decided by it. `together`: sessions of a step. No deeper than
        the `window` sustains on average: what sessions cannot use, all would wait for.
        """
        if self._stands_for <= 0:
            self._stands_for = len(self._sessions)
            chances = self._chances(min(len(costs.draft_ms) - 1, DEEPEST))
            accepted = expected_accepted(chances)
            both = zip(expected_tried(accepted), accepted, strict=True)
            borne = sum(1 for _ in takewhile(lambda each: window.sustains(*each), both))
            self._depth = self._decide(costs, accepted[: max(1, borne)])
        self._stands_for -= 1
        return min(self._depth, longest) if self._may_guess(session, together) else 0

    def shared(
        self,
        costs: CostTable,
        chances: Sequence[float],
        session: AcceptanceEstimate,
        together: float,
        window: AcceptanceWindow = NO_WINDOW,
    ) -> tuple[CostTable, Sequence[float], int | None]:
        """What a session decides by, since it is drafted for anyway: costs and chances; and its vote, if it has one.

        Where enough is known it takes part in the vote, and waits for what most want. Else it is asked for a guess
        whatever others want, or for none. See `depth`.
        """
        depth = self.depth(costs, len(chances), session, together, window)
        most = min(depth + WILLING, len(chances)) if self.known else depth
        return with_drafting(costs, most), chances[:most], depth if self.known else None

    def _decide(self, costs: CostTable, accepted: Sequence[float]) -> int:
        """How deep; `accepted`: of guesses of 1, 2, ... tokens.

        Who is of another mind than most goes by what they do: where only some guess, all wait, and few gain.
        """
        if self._passes - self._alone_since > ALONE_FOR:
            self._away_until = self._passes + AWAY_FOR
            return 0
        begun = self._others_use > 0.25  # which all coordinators of a step see alike
        if self._passes < self._away_until and not begun:
            return 0
        rates = [rate(costs, Choice(Source.MODEL, length), each) for length, each in enumerate(accepted, start=1)]
        best = max(rates)
        margin = SHARED_MARGIN + (STAY_MARGIN if self._depth or begun else BEGIN_MARGIN)
        if best < (1.0 + margin) * rate(costs, PLAIN):
            return 0

        def within(fraction: float) -> int:
            return next(length for length, each in enumerate(rates, start=1) if each >= (1.0 - fraction) * best)

        if not self._depth:
            return within(FLAT)
        return min(max(self._depth, within(FLAT + TURN)), within(FLAT - TURN))

    @property
    def known(self) -> bool:
        """Whether enough was seen for all sessions to go by it."""
        return self._pool.known >= KNOWN

    def _may_guess(self, session: AcceptanceEstimate, together: float) -> bool:
        if self.known:
            return True
        first = islice(self._sessions, max(1, round(PIONEERS * len(self._sessions) / together)))
        return any(session is each for each in first)

    def _chances(self, longest: int) -> tuple[float, ...]:
        """The chance of each token, given those before it, in a guess of any session.

        A few sessions alone are a poor measure, and another one for each coordinator.
        """
        earlier = EARLIER * self._pool.known
        known = [(earlier, (self._pool.chances + self._pool.chances[-1:] * longest)[:longest])]
        known += [(1.0, estimate.chances(1, longest)) for estimate in self._sessions]
        stand = [0.0] * longest
        for weight, chances in known:
            for place, chance in enumerate(accumulate(chances, mul)):
                stand[place] += weight * chance
        total = (earlier + len(self._sessions), *stand)
        return tuple(after / before if before else 0.0 for before, after in pairwise(total))


def with_drafting(costs: CostTable, depth: int) -> CostTable:
    """What rounds cost a session of a step that is drafted for so deep anyway."""
    drafting = costs.draft_ms[depth]
    return replace(
        costs,
        verify_ms=tuple(verify + drafting for verify in costs.verify_ms),
        draft_ms=(0.0,) * len(costs.draft_ms),
    )
