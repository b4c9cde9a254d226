"""How deep the sessions of a step are drafted for, where the verifier drafts for all of them at once.

Every session of such a step waits until the deepest guess is made. So a guess deeper than the others' costs all of them
its last tokens, one that ends before them saves nothing, and the first one of all costs the whole of drafting. What
pays is decided for all together: by what is known of all sessions, as if each were like their average.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, islice, pairwise, takewhile
from operator import mul

from outrider.acceptance.choice import NO_WINDOW, PLAIN, SHARED_MARGIN, Choice, choose, expected_accepted
from outrider.acceptance.costs import CostTable
from outrider.acceptance.estimate import LEAST_WEIGHT, MOST_WEIGHT, AcceptanceEstimate, AcceptancePool
from outrider.acceptance.proposal import Source
from outrider.acceptance.window import AcceptanceWindow

DEEPEST = 8
"""Deepest guess that is thought of."""
EARLIER = 3.0
"""How many sessions it is worth at most what earlier ones have seen."""


PIONEERS = 8
"""Sessions of a step that guess, if guesses pay at all, until what they see is known: all others wait for them."""
KNOWN = 3.0
"""The pool's weight from which on it is."""


class Consensus:
    """One for all sessions of a coordinator."""

    def __init__(self, pool: AcceptancePool) -> None:
        """`pool`: what earlier sessions have seen of the draft."""
        self._pool = pool
        self._choice: Choice = PLAIN
        self._stands_for = 0
        self._sessions: dict[AcceptanceEstimate, None] = {}  # in the order in which they came

    def join(self, estimate: AcceptanceEstimate) -> None:
        """Take part."""
        self._sessions[estimate] = None

    def leave(self, estimate: AcceptanceEstimate) -> None:
        """No longer."""
        self._sessions.pop(estimate, None)

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
            borne = takewhile(lambda each: window.sustains(*each), enumerate(expected_accepted(chances), start=1))
            chances = chances[: max(1, sum(1 for _ in borne))]
            self._choice = choose(costs, {Source.MODEL: chances}, NO_WINDOW, self._choice, margin=SHARED_MARGIN)
        self._stands_for -= 1
        return min(self._choice.length, longest) if self._may_guess(session, together) else 0

    @property
    def known(self) -> bool:
        """Whether enough was seen for all sessions to go by it."""
        return self._pool.weight >= KNOWN

    def _may_guess(self, session: AcceptanceEstimate, together: float) -> bool:
        if self.known:
            return True
        first = islice(self._sessions, max(1, round(PIONEERS * len(self._sessions) / together)))
        return any(session is each for each in first)

    def _chances(self, longest: int) -> tuple[float, ...]:
        """The chance of each token, given those before it, in a guess of any session.

        A few sessions alone are a poor measure, and another one for each coordinator.
        """
        earlier = EARLIER * (self._pool.weight - LEAST_WEIGHT) / (MOST_WEIGHT - LEAST_WEIGHT)
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
