"""What came of a round, as its verifier says it."""

from __future__ import annotations

from typing import NamedTuple

from outrider.acceptance.choice import Choice
from outrider.acceptance.guesses import validate_guess
from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import Proposal, Source, Verdict
from outrider.errors import InvalidArgument
from outrider.protocol.items import NO_STEP, DraftFirst, Step, Verified
from outrider_coordinator.orders import Checked


class Judged(NamedTuple):
    """What was verified, and the target's word on it. A tuple, which is made faster."""

    proposal: Proposal
    verdict: Verdict
    step: Step = NO_STEP

    @property
    def draft_ms(self) -> float:
        """How long the verifier drafted for the step's sessions, this one among them or not."""
        return self.step.draft_microseconds / 1e3

    @property
    def step_ms(self) -> float:
        """How long the last pass took, as the verifier says."""
        return self.verdict.step_microseconds / 1e3


def judged(reply: Verified, wanted: Checked, rule: Rule, *, vocabulary_size: int) -> Judged:
    """The reply to a round of `wanted`. Raise InvalidArgument if it cannot be one.

    What a verifier drafted by itself is checked like any draft's guess. `vocabulary_size`: of the target.
    """
    if not isinstance(wanted, DraftFirst):
        return Judged(wanted, reply.verdict, reply.step)
    asked = Choice(Source.MODEL, wanted.max_tokens, wanted.siblings)
    validate_guess(reply.drafted, asked, rule, vocabulary_size=vocabulary_size)
    rows, expected = len(reply.verdict.next_tokens), len(reply.drafted) + 1
    if rows != expected:
        raise InvalidArgument("verdict.next_tokens", rows, f"{expected} long")
    return Judged(reply.drafted, reply.verdict, reply.step)
