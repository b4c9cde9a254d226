"""How deep the sessions of a step are drafted for, where the verifier drafts for all of them at once.

Every session of such a step waits until the deepest guess is made. So a guess deeper than the others' costs all of them
its last tokens, one that ends before them saves nothing, and the first one of all costs the whole of drafting. What
pays is decided for all together: by what is known of all sessions, as if each were like their average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outrider.acceptance.choice import NO_WINDOW, PLAIN, SHARED_MARGIN, Choice, choose
from outrider.acceptance.costs import CostTable
from outrider.acceptance.proposal import Source

REFRESH = 16
"""Decisions of sessions for which one of all stands."""


class Consensus:
    """One for all sessions of a coordinator."""

    def __init__(self) -> None:
        self._choice: Choice = PLAIN
        self._stands_for = 0

    def depth(self, costs: CostTable, chances: Sequence[float]) -> int:
        """Most tokens that a session's guess should have now; 0: none should be made.

        `chances`: that each token stands, given those before it, on average over all sessions.
        """
        if self._stands_for == 0:
            self._stands_for = REFRESH
            self._choice = choose(costs, {Source.MODEL: chances}, NO_WINDOW, self._choice, margin=SHARED_MARGIN)
        self._stands_for -= 1
        return min(self._choice.length, len(chances))


def with_drafting(costs: CostTable, depth: int) -> CostTable:
    """What rounds cost a session of a step that is drafted for so deep anyway."""
    drafting = costs.draft_ms[depth]
    return replace(
        costs,
        verify_ms=tuple(verify + drafting for verify in costs.verify_ms),
        draft_ms=(0.0,) * len(costs.draft_ms),
    )
