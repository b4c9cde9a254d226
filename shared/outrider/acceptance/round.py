"""What a session's control learns of a round."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.acceptance.tally import NO_TALLY, Tally


@dataclass(frozen=True, slots=True)
class Round:
    """What came of a choice. A time that says nothing of later rounds is None."""

    proposed: int  # depth of the proposal: 0 where the source had nothing after all
    accepted: int  # a sibling included, if one stood
    committed: int
    propose_ms: float | None
    verify_ms: float | None
    foreseen: bool | None = None  # whether this round's proposal had been drafted ahead; None: nothing had
    ahead: int = 0  # how many tokens had been drafted ahead for each outcome, if any had
    period_ms: float | None = None  # since the verdict before
    step_ms: float = 0.0  # of the verifier alone, as it says
    rows: int = 0  # of the verifier's pass, with those of the sessions that shared it
    sessions: int = 0  # that shared it, this one included
    drafted: int | None = None  # tokens that `propose_ms` was for, if they are not the proposal's: others' too
    beside: int = 0  # proposed tokens beside the chain
    tried: int = 0  # those of them beside the first token of the chain that fell
    stood: int | None = None  # which of these stood, from 0
    tally: Tally = NO_TALLY  # of guesses of all who share the verifier, told of lately

    @property
    def fell(self) -> bool:
        """Whether a token of the proposal was tried and did not stand, nor one beside it."""
        return self.accepted < self.proposed and self.stood is None
