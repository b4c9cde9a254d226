"""What a round costs: the time of drafting and of verifying so many tokens, learned from the rounds of all sessions."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.acceptance.curve import ENOUGH, TimeCurve
from outrider.acceptance.proposal import Source

PLAIN_OLD = 200
"""Rounds without a plain one after which the time of those is measured again."""
OLD = 500
"""The same for rounds that propose, and for drafts."""
SURVEY_EVERY = 25
"""Of so many proposals one has another length than the best, to see whether that is still the best."""
HIT_MEMORY = 0.98
"""What a look into an outcome cache is worth after each later one."""
HIT_PRIOR, HIT_WEIGHT = 0.7, 10.0
"""The hit rate before anything is known, and how many looks that is worth."""
LONGEST_LESSON = 8
"""Longest guess, in tokens, that is made only to learn its time."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Milliseconds by number of tokens, 0 to the longest that may be proposed."""

    verify_ms: tuple[float, ...]  # [longest + 1]
    draft_ms: tuple[float, ...]  # [longest + 1], of the draft model
    ahead_ms: tuple[float, ...] = ()  # [longest + 1], of the draft model for all likely outcomes

    @property
    def plain_ms(self) -> float:
        """One round of plain decoding."""
        return self.verify_ms[0]

    def round_ms(self, source: Source, length: int, beside: int = 0) -> float:
        """One round that proposes `length` tokens of `source` and `beside` more in their places, which cost no draft.

        Looking an n-gram up takes no time worth counting.
        """
        return self.verify_ms[length + beside] + (self.draft_ms[length] if source is Source.MODEL else 0.0)


class RoundCosts:
    """One for all sessions of a coordinator: they share its replicas and its network.

    A session's first round, which holds its prefill, must not be observed; nor a draft that has first to catch up.
    """

    def __init__(self) -> None:
        self._verify = TimeCurve()
        self._draft = TimeCurve(through_origin=True)
        self._ahead = TimeCurve(through_origin=True)
        self._ahead_times, self._ahead_last = 0, 0
        self._looks = self._hits = 0.0
        self._rounds = 0  # observed ones, with and without a proposal
        self._surveys = 0
        # Source.NONE stands for plain rounds, NGRAM for rounds with any proposal, MODEL for drafts.
        self._last = dict.fromkeys(Source, 0)  # the observed round in which each was last seen
        self._times = dict.fromkeys(Source, 0)  # how often each was seen since it was new or old
        self._learned: set[Source] = set()

    def observe_verify(self, proposed: int, milliseconds: float) -> None:
        """From sending `proposed` tokens to having the verdict."""
        self._verify.observe(proposed, milliseconds)
        self._mark(Source.NGRAM if proposed else Source.NONE)
        self._rounds += 1

    def observe_draft(self, drafted: int, milliseconds: float) -> None:
        """From asking the draft model to having `drafted` tokens, at least 1."""
        if self._is_old(Source.MODEL):
            self._draft.restart()
        self._draft.observe(drafted, milliseconds)
        self._mark(Source.MODEL)

    def observe_ahead(self, drafted: int, milliseconds: float) -> None:
        """From asking the draft model to look ahead to having its proposals of `drafted` tokens."""
        self._ahead.observe(drafted, milliseconds)
        self._ahead_times, self._ahead_last = self._ahead_times + 1, self._rounds

    def observe_lookup(self, hit: bool) -> None:
        """Whether the outcome of a round had been foreseen."""
        self._looks = HIT_MEMORY * self._looks + 1.0
        self._hits = HIT_MEMORY * self._hits + hit

    @property
    def hit_rate(self) -> float:
        """How many of the outcomes are foreseen, 0 to 1."""
        return (self._hits + HIT_PRIOR * HIT_WEIGHT) / (self._looks + HIT_WEIGHT)

    @property
    def known_ahead(self) -> bool:
        """False while drafting ahead was timed too seldom, or too long ago."""
        return self._ahead_times >= ENOUGH and self._rounds - self._ahead_last < OLD

    def table(self, longest: int) -> CostTable:
        """What is known now, for proposals of up to `longest` tokens."""
        return CostTable(self._verify.times(longest), self._draft.times(longest), self._ahead.times(longest))

    def known(self, source: Source) -> bool:
        """False while rounds of the source (`Source.NONE`: plain ones) were timed too seldom, or too long ago.

        What is not chosen would otherwise never be measured again, and speculation must beat what plain decoding
        takes now.
        """
        return self._times[source] >= ENOUGH and not self._is_old(source)

    def lesson(self, source: Source, longest: int) -> int:
        """The length of a guess that is made to learn its time: long at first, later just enough to tell."""
        return 1 if source in self._learned else min(longest, LONGEST_LESSON)

    def survey(self, length: int, longest: int) -> int:
        """`length`, but now and then its double or its half, whichever was measured less."""
        self._surveys += 1
        if self._surveys % SURVEY_EVERY:
            return length
        return min(min(2 * length, longest), max(1, length // 2), key=self._verify.count)

    def _is_old(self, source: Source) -> bool:
        return self._rounds - self._last[source] >= (PLAIN_OLD if source is Source.NONE else OLD)

    def _mark(self, source: Source) -> None:
        self._times[source] = 1 if self._is_old(source) else self._times[source] + 1
        self._last[source] = self._rounds
        if self._times[source] >= ENOUGH:
            self._learned.add(source)
