"""What a session's control learns of a round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """What came of a choice. A time that says nothing of later rounds is None."""

    proposed: int  # depth of the proposal: 0 where the source had nothing after all
    accepted: int  # a sibling included, if one stood
    committed: int
    propose_ms: float | None
    verify_ms: float | None
    foreseen: bool | None = None  # whether this round's proposal had been drafted ahead; None: nothing had
    together: bool = False  # `propose_ms` is the drafting of all sessions of the verifier's step, not only of this one
    beside: int = 0  # proposed tokens beside the chain
    tried: int = 0  # those of them beside the first token of the chain that fell
    stood: int | None = None  # which of these stood, from 0
