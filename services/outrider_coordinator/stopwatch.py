"""Times the parts of a round."""

from __future__ import annotations

import time

from outrider_coordinator.judged import Judged

SHORTEST_MS = 1e-3
"""No verification takes less."""


class RoundClock:
    """Told of each part's end; knows in milliseconds how long the last one took."""

    def __init__(self) -> None:
        self.propose_ms = 0.0
        self.verify_ms = 0.0
        self.period_ms = 0.0  # since the verdict before
        self._last = self._verdict = time.perf_counter()

    def proposed(self) -> None:
        """The proposal is there."""
        self.propose_ms = self._lap()

    def verified(self, judged: Judged, *, began_by_itself: bool, in_step: bool = False) -> None:
        """The verdict is there. A round that the verifier began by itself has run since the verdict before.

        `in_step`: the verifier drafts for all sessions of a step. What it says of the step then counts alone, where
        there are several: all coordinators are told the same, and how long a round waited for the step before depends
        on when it was asked for, not on what it proposed.
        """
        self.verify_ms = self._lap()
        self.period_ms = (self._last - self._verdict) * 1e3
        if began_by_itself:
            self.verify_ms = self.period_ms
        self._verdict = self._last
        if judged.draft_ms:
            self.propose_ms = judged.draft_ms
        if in_step and judged.step.sessions > 1 and judged.step_ms:
            self.verify_ms = judged.step_ms
        elif judged.draft_ms or began_by_itself:
            # The verdict before may have come late: then less is left of the round here than it took there.
            self.verify_ms = max(self.verify_ms - judged.draft_ms, judged.step_ms, SHORTEST_MS)

    def emitted(self) -> None:
        """The client has what was committed: the next round begins."""
        self._lap()

    def _lap(self) -> float:
        last, self._last = self._last, time.perf_counter()
        return (self._last - last) * 1e3
