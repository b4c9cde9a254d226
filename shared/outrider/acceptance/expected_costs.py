"""What rounds cost where replicas have told what their passes take: that, corrected by what is seen."""

from __future__ import annotations

import math
from itertools import accumulate

from outrider.acceptance.factors import REMEMBERED, Factors, cell_of
from outrider.acceptance.step_times import StepTimes

HOPE = 0.2
"""By so much less than is believed rounds may take that were not seen lately: plain ones, or those with guesses."""
PATIENCE = 8.0
"""Passes for which that is hoped: not all coordinators of a verifier may be of one mind."""
GUESSED = 2.0
"""Rows a session of the shortest guesses."""
STEADY = 0.02
"""Sessions are taken to be as many as before if their number differs by no more than this fraction."""

PLAIN, GUESSES = "plain", "guesses"


class ExpectedCosts:
    """Times of the present load; what is learned at any load counts at the others until they are seen."""

    def __init__(self, verify: StepTimes, draft: StepTimes | None) -> None:
        self.told = verify, draft
        self.drafts = draft is not None
        self._verify, self._draft = verify, draft
        self._rounds, self._drafting = Factors(), Factors()
        self._passes = 0.0  # that this coordinator had sessions in
        self._sessions, self._own = 1.0, 1
        self.pass_ms = verify.at(1.0, 1.0)
        """Of a plain pass at the present load, as told."""
        self._hoped: dict[tuple[int, str], float] = {}  # by load and kind of round: since when the best is hoped
        self._tables: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self._made = (-1, -1, "")  # what the tables were made of

    def at_load(self, sessions: float, own: int) -> None:
        """So many sessions share a pass now, `own` of them this coordinator's."""
        self._own = max(own, 1)
        if abs(sessions - self._sessions) > STEADY * self._sessions:
            self._sessions = sessions
            self.pass_ms = self._verify.at(sessions, sessions)
            self._tables.clear()

    def observe_verify(self, rows: int, sessions: int, milliseconds: float) -> None:
        """A round in a pass of so many rows and sessions."""
        expected = self._verify.at(rows, sessions)
        self._rounds.observe(self._passes, cell_of(sessions, rows / sessions), milliseconds, expected)
        self._passes += 1.0 / self._own

    def observe_draft(self, drafted: int, sessions: int, milliseconds: float) -> None:
        """Guesses of so many tokens for so many sessions."""
        assert self._draft is not None
        expected = self._draft.drafting(drafted, sessions)
        self._drafting.observe(self._passes, cell_of(sessions, drafted), milliseconds, expected)

    @property
    def hopes(self) -> str:
        """Of which rounds the best is hoped: those not seen lately at this load, if others were. Empty: of none."""
        load, _ = plain = cell_of(self._sessions, 1.0)
        seen_plain = self._rounds.seen(self._passes, plain)
        seen_guesses = self._rounds.seen_beyond(self._passes, load, cell_of(1.0, GUESSED)[1])
        if seen_plain == seen_guesses:
            return ""
        kind = GUESSES if seen_plain else PLAIN
        since = self._hoped.get((load, kind), -math.inf)
        if self._passes - since > REMEMBERED:
            since = self._hoped[load, kind] = self._passes
        return kind if self._passes - since <= PATIENCE else ""

    def times(self, longest: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Milliseconds of verifying and of drafting 0 to `longest` tokens a session, neither falling.

        The latter is empty where the draft has told nothing.
        """
        hopes = self.hopes
        made = self._rounds.version, self._drafting.version, hopes
        if made != self._made:
            self._made = made
            self._tables.clear()
        if longest not in self._tables:
            self._tables[longest] = self._compute(longest, hopes)
        return self._tables[longest]

    def _compute(self, longest: int, hopes: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        sessions = self._sessions

        def corrected(factors: Factors, size: int, expected: float) -> float:
            return expected * factors.at(self._passes, cell_of(sessions, size), expected)

        verify = [
            corrected(self._rounds, rows, self._verify.at(sessions * rows, sessions)) for rows in range(1, longest + 2)
        ]
        if hopes == GUESSES:
            verify[1:] = [(1.0 - HOPE) * each for each in verify[1:]]
        elif hopes == PLAIN:
            verify[0] *= 1.0 - HOPE
        draft: list[float] = []
        if self._draft is not None:
            expected = (self._draft.drafting(size, sessions) for size in range(1, longest + 1))
            draft = [0.0, *(corrected(self._drafting, size, each) for size, each in enumerate(expected, start=1))]
        return tuple(accumulate(verify, max)), tuple(accumulate(draft, max))
