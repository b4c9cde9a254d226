"""A simulated verifier with a draft of its own whose passes take as long as those of a card that was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.acceptance.step_times import StepTimes
from outrider.engine.worker import nothing
from outrider.protocol.items import Step, Verified
from tests.benchmarks.simulated.card import MEASURED, Card
from tests.benchmarks.simulated.cores import Session, SimulatedPeer, SimulatedVerifier, sleep_until

PROMPT = 512
PROMPT_MS = 1.0
"""Of the draft, for so many tokens: not measured, but its share, 3 layers of 32, of what the target takes."""
TOLD = 0.9
"""Replicas time themselves without the work of the streams: taken to be a tenth less than passes take."""


@dataclass
class CardVerifier(SimulatedVerifier):
    """Everything takes `slower` times as long as on the card: what the host really takes counts the less."""

    card: Card = field(default_factory=lambda: replace(MEASURED, opening_ms=PROMPT_MS))
    slower: float = 1.0
    _verified_us: int = 0

    @property
    def drafts(self) -> bool:
        """See SimulatedCore."""
        return True

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[SimulatedPeer, Any]]:
        """See SimulatedCore."""
        started = time.perf_counter()
        meanwhile()
        drafting = [session for session in self.working.values() if session.work.draft_first is not None]  # type: ignore[union-attr]
        lengths = self.draft_for(drafting)
        deepest = max(lengths, default=0)
        new = [session for session, length in zip(drafting, lengths, strict=True) if length and not session.opened]
        for session in new:
            session.opened = True
        draft_ms = self.card.drafting_ms * (deepest > 0) + len(new) * self.card.opening_ms
        draft_ms += sum(self.card.draft_ms(sum(length > step for length in lengths)) for step in range(deepest))
        proposed = [len(session.work.proposal) for session in self.working.values()]  # type: ignore[union-attr]
        sessions, rows = len(proposed), len(proposed) + sum(proposed)
        guessing = sum(each > 0 for each in proposed)
        verify_ms = self.card.verify_ms(rows) + self.card.host_ms(sessions - guessing, guessing, sum(proposed))
        self._told = Step(rows, sessions, round(self.slower * draft_ms * 1e3), deepest, PROMPT * len(new))
        self._verified_us = round(self.slower * verify_ms * 1e3)
        replies = self.end_rounds()
        sleep_until(started + self.slower * (draft_ms + verify_ms) / 1e3)
        return replies

    def reply(self, session: Session) -> Verified:
        """See SimulatedCore; with what the pass takes."""
        reply = super().reply(session)
        return reply._replace(verdict=reply.verdict._replace(step_microseconds=self._verified_us))

    def told(self) -> tuple[StepTimes, StepTimes]:
        """See SimulatedCore; real ones have timed it when they started."""
        return self.card.told(TOLD * self.slower)
