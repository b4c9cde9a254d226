"""Where a session's proposals come from. None of them can change the answer, and none may hold it up for long.

The draft model's are in `model_drafter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.acceptance.choice import Choice
from outrider.acceptance.ngram import NgramIndex
from outrider.acceptance.proposal import Proposal
from outrider.protocol.items import DraftFirst
from outrider_coordinator.orders import Checked
from outrider_coordinator.target import TargetBinding


class Drafter(Protocol):
    """A source of proposals for one session."""

    @property
    def fallback_reason(self) -> str:
        """Why it stopped proposing, if it did."""

    def level(self, committed: Sequence[int]) -> int:
        """How much speaks for its next token, as `AcceptanceEstimate` counts it; 0 while it has nothing to propose."""

    def up_to_date(self, committed: Sequence[int], max_tokens: int) -> bool:
        """False if its next proposal has first to catch up, so that its time says nothing of the ones to come."""

    async def propose(self, committed: Sequence[int], choice: Choice) -> Checked:
        """What was chosen, or less; `NO_PROPOSAL` whenever nothing is at hand. Never raises for a lost replica."""

    async def close(self) -> None:
        """Free what the drafter holds for the session."""


class NgramDrafter:
    """Looks the last few tokens up in the session's own history. Costs no round trip."""

    def __init__(self) -> None:
        self.fallback_reason = ""
        self._index = NgramIndex()

    def level(self, committed: Sequence[int]) -> int:
        """How many of the last tokens occurred before in that order."""
        self._index.extend(committed[len(self._index) :])
        return self._index.matched

    def up_to_date(self, committed: Sequence[int], max_tokens: int) -> bool:
        """Always."""
        return True

    async def propose(self, committed: Sequence[int], choice: Choice) -> Proposal:
        """What followed the same few tokens before."""
        self._index.extend(committed[len(self._index) :])
        return self._index.propose(choice.length)

    async def close(self) -> None:
        """Nothing to free."""


class OwnDrafter:
    """The draft that the session's verifier has of its own: it proposes within the round, without a round trip."""

    def __init__(self, target: TargetBinding) -> None:
        self._target = target
        self._drafted_in = 0  # the opening in which it last drafted
        self._drafted_at = 0  # committed tokens then

    @property
    def fallback_reason(self) -> str:
        """See Drafter."""
        return self._target.draft_trouble

    def level(self, committed: Sequence[int]) -> int:
        """1 while the session is on a verifier that drafts."""
        return int(self._target.drafts)

    def up_to_date(self, committed: Sequence[int], max_tokens: int) -> bool:
        """False for the first guess after opening, and when more was committed since the last than one round does."""
        known = self._drafted_in == self._target.opening
        return known and len(committed) - self._drafted_at <= max_tokens + 1

    async def propose(self, committed: Sequence[int], choice: Choice) -> DraftFirst:
        """What the verifier is to draft."""
        self._drafted_in, self._drafted_at = self._target.opening, len(committed)
        return DraftFirst(choice.length, choice.siblings, choice.vote)

    async def close(self) -> None:
        """Nothing to free: it ends with the session on the verifier."""
