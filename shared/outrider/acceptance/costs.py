"""What a round costs: the time of drafting and of verifying so many tokens, learned from the rounds of all sessions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from operator import mul

from outrider.acceptance.curve import ENOUGH, TimeCurve
from outrider.acceptance.expected_curve import ExpectedCurve
from outrider.acceptance.proposal import Source
from outrider.acceptance.step_times import StepTimes, place_of, rows_at

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
LOAD_STEP = 0.7
"""How far, in powers of two, the number of sessions must be from the one that a curve stands for to take another."""
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


class _AtLoad:
    """What was learned with about so many sessions, and when; `Source` as in `RoundCosts.known`."""

    def __init__(self) -> None:
        self.verify = TimeCurve()
        self.last = dict.fromkeys(Source, 0)  # the observed round in which each was last seen
        self.times = dict.fromkeys(Source, 0)  # how often each was seen since it was new or old
        self.learned: set[Source] = set()


class _Expected:
    """The same where replicas have told what their passes take: by the rows in flight of all sessions."""

    def __init__(self, sessions: int, verify: StepTimes, draft: StepTimes | None) -> None:
        self.verify = ExpectedCurve(lambda place: verify.at(rows_at(place)))
        self.draft = None if draft is None else ExpectedCurve(partial(mul, draft.at(sessions)))

    def verify_ms(self, sessions: float, longest: int) -> tuple[float, ...]:
        """By the tokens that each session proposes, if all propose as many."""
        places = [place_of(sessions * (1 + length)) for length in range(longest + 1)]
        times = self.verify.times(int(places[-1]) + 1)
        return tuple(
            times[low] + (times[low + 1] - times[low]) * (place - low) for place in places for low in (int(place),)
        )


class RoundCosts:
    """One for all sessions of a coordinator: they share its replicas and its network.

    What more tokens cost depends on how many sessions propose them in one step, not only how long everything takes. So
    there is a curve for each power of two of sessions. Where replicas say what their passes take (`expect`), it begins
    with that, and what a round takes is what it does if all sessions choose alike; else a load that was never seen is
    learned anew.

    A session's first round, which holds its prefill, must not be observed; nor a draft that has first to catch up.
    """

    def __init__(self) -> None:
        self._loads = {0: _AtLoad()}  # by the logarithm of the number of sessions, to the base 2
        self._load = 0
        self._sessions = 1.0
        self._here = self._loads[0]
        self._expected: dict[int, _Expected] = {}  # by load
        self._steps: tuple[StepTimes, StepTimes | None] | None = None
        self._draft = TimeCurve(through_origin=True)
        self._ahead = TimeCurve(through_origin=True)
        self._ahead_times, self._ahead_last = 0, 0
        self._looks = self._hits = 0.0
        self._rounds = 0  # observed ones, with and without a proposal
        self._surveys = 0

    def expect(self, verify: StepTimes, draft: StepTimes | None) -> None:
        """What the passes of a verifier take, and those of the draft, which draws a token a row."""
        if self._steps != (verify, draft):
            self._steps = verify, draft
            self._expected.clear()

    def at_load(self, sessions: float) -> None:
        """So many sessions share a pass now."""
        self._sessions = max(sessions, 1.0)
        load = math.log2(self._sessions)
        if abs(load - self._load) > LOAD_STEP:
            self._load = round(load)
            self._here = self._loads.setdefault(self._load, _AtLoad())

    def observe_verify(self, proposed: int, rows: int, milliseconds: float) -> None:
        """From sending `proposed` tokens to having the verdict; the pass had `rows`, those of other sessions too."""
        if expected := self._expectation():
            expected.verify.observe(round(place_of(rows)), milliseconds)
        else:
            self._here.verify.observe(proposed, milliseconds)
        self._mark(Source.NGRAM if proposed else Source.NONE)
        self._rounds += 1

    def observe_draft(self, drafted: int, milliseconds: float) -> None:
        """From asking the draft model to having `drafted` tokens, at least 1."""
        if (expected := self._expectation()) and expected.draft:
            expected.draft.observe(drafted, milliseconds)
        else:
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
        verify, draft = self._here.verify.times, self._draft.times
        if expected := self._expectation():
            verify = partial(expected.verify_ms, self._sessions)
            draft = expected.draft.times if expected.draft else draft
        return CostTable(verify(longest), draft(longest), self._ahead.times(longest))

    def known(self, source: Source) -> bool:
        """False while rounds of the source (`Source.NONE`: plain ones) were timed too seldom, or too long ago.

        What is not chosen would otherwise never be measured again, and speculation must beat what plain decoding
        takes now.
        """
        if (expected := self._expectation()) and (source is not Source.MODEL or expected.draft):
            return True
        return self._here.times[source] >= ENOUGH and not self._is_old(source)

    def lesson(self, source: Source, longest: int) -> int:
        """The length of a guess that is made to learn its time: long at first, later just enough to tell."""
        return 1 if source in self._here.learned else min(longest, LONGEST_LESSON)

    def survey(self, length: int, longest: int) -> int:
        """`length`, but now and then its double or its half, whichever was measured less."""
        self._surveys += 1
        if self._surveys % SURVEY_EVERY or self._steps:
            return length
        return min(min(2 * length, longest), max(1, length // 2), key=self._here.verify.count)

    def _expectation(self) -> _Expected | None:
        if self._steps is None:
            return None
        if self._load not in self._expected:
            self._expected[self._load] = _Expected(2**self._load, *self._steps)
        return self._expected[self._load]

    def _is_old(self, source: Source) -> bool:
        return self._rounds - self._here.last[source] >= (PLAIN_OLD if source is Source.NONE else OLD)

    def _mark(self, source: Source) -> None:
        # Source.NONE stands for plain rounds, NGRAM for rounds with any proposal, MODEL for drafts.
        here = self._here
        here.times[source] = 1 if self._is_old(source) else here.times[source] + 1
        here.last[source] = self._rounds
        if here.times[source] >= ENOUGH:
            here.learned.add(source)
