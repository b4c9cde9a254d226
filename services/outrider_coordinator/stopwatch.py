"""Times the parts of a round."""

from __future__ import annotations

import time


class RoundClock:
    """Told of each part's end; knows in milliseconds how long the last one took."""

    def __init__(self) -> None:
        self.propose_ms = 0.0
        self.verify_ms = 0.0
        self._last = self._verdict = time.perf_counter()

    def proposed(self) -> None:
        """The proposal is there."""
        self.propose_ms = self._lap()

    def verified(self, *, began_by_itself: bool, draft_ms: float | None = None) -> None:
        """The verdict is there. A round that the verifier began by itself has run since the verdict before.

        `draft_ms`: what of the round's time the verifier took to draft by itself, if it did.
        """
        self.verify_ms = self._lap()
        if began_by_itself:
            self.verify_ms = (self._last - self._verdict) * 1e3
        self._verdict = self._last
        if draft_ms is not None:
            # Both clocks tell whole durations, but one that is wrong must not make the other negative.
            self.propose_ms = min(draft_ms, self.verify_ms)
            self.verify_ms -= self.propose_ms

    def emitted(self) -> None:
        """The client has what was committed: the next round begins."""
        self._lap()

    def _lap(self) -> float:
        last, self._last = self._last, time.perf_counter()
        return (self._last - last) * 1e3
