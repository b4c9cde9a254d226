"""What a large GPU takes for the passes of a verifier that drafts by itself."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.acceptance.step_times import StepTimes

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TIMED_EACH = 8
"""As in the engine: rows of a session in the rounds that a replica times of itself, but for those of one row each."""


@dataclass(frozen=True)
class Card:
    """About what a large GPU takes, in milliseconds: free up to a few rows, then dearer; the host beside it."""

    host: float = 0.04  # a session's that decodes plainly, each round
    host_guess: float = 0.04  # the same of one that guesses
    host_row: float = 0.0  # a proposed token's
    opening_ms: float = 0.0  # of the draft, before a session's first guess
    base_ms: float = 4.2  # of a verifier's pass; then a row's, and what it takes more beyond 256, at once and each
    row_ms: float = 0.032
    step_ms: float = 5.0
    later_row_ms: float = 0.0
    drafting_ms: float = 0.5  # of drafting at all; then a pass's, and a session's in it
    draft_pass_ms: float = 0.55
    drafted_ms: float = 0.006

    def verify_ms(self, rows: float) -> float:
        return self.base_ms + self.row_ms * rows + (rows > 256) * (self.step_ms + self.later_row_ms * (rows - 256))

    def draft_ms(self, sessions: float) -> float:
        return self.draft_pass_ms + self.drafted_ms * sessions

    def host_ms(self, plain: int, guessing: int, proposed: int) -> float:
        return 0.15 + self.host * plain + self.host_guess * guessing + self.host_row * proposed

    def told(self, factor: float, guessed: float = 1.0, *, seen: float = 0.5) -> tuple[StepTimes, StepTimes]:
        """What the replica says: of its host it has seen a part; wrong by a factor, more so for rounds with guesses."""

        def packed_ms(rows: int) -> float:
            count = -(-rows // TIMED_EACH)
            return factor * guessed * (self.verify_ms(rows) + seen * self.host_ms(0, count, rows - count))

        apart = tuple(factor * (self.verify_ms(rows) + seen * self.host_ms(rows, 0, 0)) for rows in ROWS)
        verify = StepTimes(ROWS, tuple(map(packed_ms, ROWS)), TIMED_EACH, StepTimes(ROWS, apart))
        return verify, StepTimes(ROWS, tuple(factor * self.draft_ms(rows) for rows in ROWS))


MEASURED = Card(
    host=0.033,
    host_guess=0.072,
    opening_ms=0.05,
    base_ms=4.35,
    row_ms=0.0136,
    step_ms=0.0,
    later_row_ms=0.0195,
    drafting_ms=0.0,
    draft_pass_ms=0.606,
    drafted_ms=0.0,
)
"""Fitted to an H200's rounds of 4 to 128 sessions and guesses of 0 to 5 tokens: within 5% of all of them."""
