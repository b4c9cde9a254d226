"""What a round costs: the time of drafting and of verifying so many tokens, learned from the rounds of all sessions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outrider.acceptance.ahead_times import AheadTimes
from outrider.acceptance.curve import ENOUGH, TimeCurve
from outrider.acceptance.expected_costs import ExpectedCosts
from outrider.acceptance.hit_rates import HitRates
from outrider.acceptance.proposal import Source
from outrider.acceptance.slack import Slack
from outrider.acceptance.step_times import StepTimes

PLAIN_OLD = 200
"""Rounds without a plain one after which the time of those is measured again."""
OLD = 500
"""The same for rounds that propose, and for drafts."""
AHEAD_OLD = 48
"""The same for drafting ahead, which is given up where it does not pay; twice as long each time it still does not."""
AHEAD_PAYS = 16
"""Rounds in a row for which that was drafted ahead, after which it is taken to pay."""
SURVEY_EVERY = 25
"""Of so many proposals one has another length than the best, to see whether that is still the best."""
LOAD_STEP = 0.7
"""How far, in powers of two, the number of sessions must be from the one that a curve stands for to take another."""
LONGEST_LESSON = 8
"""Longest guess, in tokens, that is made only to learn its time."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Milliseconds by number of tokens, 0 to the longest that may be proposed."""

    verify_ms: tuple[float, ...]  # [longest + 1]
    draft_ms: tuple[float, ...]  # [longest + 1], of the draft model
    ahead_ms: tuple[float, ...] = ()  # [longest + 1], rounds for whose outcomes so many tokens are drafted ahead
    miss_ms: float | None = None  # what those take more whose outcome was not foreseen; None: what a guess does
    pass_ms: float = 0.0  # of a plain pass, as the verifier says: nothing waits for it there; 0: it says nothing

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


class RoundCosts:
    """One for all sessions of a coordinator: they share its replicas and its network.

    What more tokens cost depends on how many sessions propose them in one step, not only how long everything takes. So
    there is a curve for each power of two of sessions, and a load that was never seen is learned anew. Where replicas
    say what their passes take (`expect`), that is corrected by what is seen, and what a round takes is what it does if
    all sessions choose alike.

    A session's first round, which holds its prefill, must not be observed; nor a draft that has first to catch up.
    """

    def __init__(self) -> None:
        self._loads = {0: _AtLoad()}  # by the logarithm of the number of sessions, to the base 2
        self._load = 0
        self._sessions = 1.0
        self._here = self._loads[0]
        self._expected: ExpectedCosts | None = None  # where replicas have told what their passes take
        self._draft = TimeCurve(through_origin=True)
        self._ahead = AheadTimes()
        self._ahead_times, self._ahead_last = 0, 0
        self._ahead_old = AHEAD_OLD
        self._hits = HitRates()
        self.slack = Slack()
        self._rounds = 0  # observed ones, with and without a proposal
        self._surveys = 0

    def expect(self, verify: StepTimes, draft: StepTimes | None) -> None:
        """What the passes of a verifier take, and those of the draft, which draws a token a row."""
        if self._expected is None or self._expected.told != (verify, draft):
            self._expected = ExpectedCosts(verify, draft)

    def at_load(self, sessions: float, own: int = 1) -> None:
        """So many sessions share a pass now, `own` of them this coordinator's."""
        self._sessions = max(sessions, 1.0)
        if self._expected:
            self._expected.at_load(self._sessions, own)
        load = math.log2(self._sessions)
        if abs(load - self._load) > LOAD_STEP:
            self._load = round(load)
            self._here = self._loads.setdefault(self._load, _AtLoad())

    def observe_verify(self, proposed: int, milliseconds: float, rows: int = 0, sessions: int = 0) -> None:
        """From sending `proposed` tokens to having the verdict; what shared the pass, this session's part included."""
        if self._expected:
            self._expected.observe_verify(max(rows, 1 + proposed), max(sessions, 1), milliseconds)
        else:
            self._here.verify.observe(proposed, milliseconds)
        self._mark(Source.NGRAM if proposed else Source.NONE)
        self._rounds += 1

    def observe_draft(self, drafted: int, milliseconds: float, sessions: int = 0) -> None:
        """From asking the draft model to having `drafted` tokens, at least 1, for so many sessions."""
        if self._expected and self._expected.drafts:
            self._expected.observe_draft(drafted, max(sessions, 1), milliseconds)
        else:
            if self._is_old(Source.MODEL):
                self._draft.restart()
            self._draft.observe(drafted, milliseconds)
        self._mark(Source.MODEL)

    def observe_ahead(self, drafted: int, milliseconds: float) -> None:
        """From verdict to verdict, for a round whose proposal is one of those of `drafted` tokens drafted ahead.

        Where the draft is not done in time, the round waits: for it, and for what it says to reach the verifier.
        """
        since = self._rounds - self._ahead_last
        if since >= self._ahead_old:
            self._ahead.restart()
            self._ahead_times, self._ahead_old = 0, min(2 * self._ahead_old, OLD)
        elif since > AHEAD_PAYS:
            self._ahead_times = min(self._ahead_times, ENOUGH)
        self._ahead.observe(drafted, milliseconds)
        self._ahead_times, self._ahead_last = self._ahead_times + 1, self._rounds
        if self._ahead_times >= AHEAD_PAYS:
            self._ahead_old = AHEAD_OLD

    def observe_lookup(self, drafted: int, hit: bool, milliseconds: float | None, step_ms: float = 0.0) -> None:
        """Whether the outcome of a round was among those that `drafted` tokens each had been drafted ahead for.

        `milliseconds`: see `observe_ahead`; None: they say nothing of later rounds. `step_ms`: see `Slack`.
        """
        self._hits.observe(drafted, hit)
        if milliseconds is None:
            return
        if hit:
            self.observe_ahead(drafted, milliseconds)
            self.slack.observe(milliseconds, step_ms)
        else:
            self._ahead.observe_miss(drafted, milliseconds)

    def hit_rate(self, drafted: int) -> float:
        """How many of the outcomes are foreseen, 0 to 1, if so many tokens are drafted ahead for each."""
        return self._hits.rate(drafted)

    @property
    def known_ahead(self) -> bool:
        """False while drafting ahead was timed too seldom, or too long ago.

        What it took while others' prompts were read would otherwise speak against it for good.
        """
        return self._ahead_times >= ENOUGH and self._rounds - self._ahead_last < self._ahead_old

    def table(self, longest: int) -> CostTable:
        """What is known now, for proposals of up to `longest` tokens."""
        if self._expected is None:
            verify, draft = self._here.verify.times(longest), self._draft.times(longest)
        else:
            verify, draft = self._expected.times(longest)
            draft = draft or self._draft.times(longest)
        pass_ms = self._expected.pass_ms if self._expected else 0.0
        return CostTable(verify, draft, self._ahead.times(longest, draft), self._ahead.miss_ms, pass_ms)

    def by_rows(self) -> list[tuple[float, float]]:
        """Rows and milliseconds of passes in which all sessions propose as much, in order; empty: nobody told."""
        if self._expected is None:
            return []
        verify, _ = self._expected.times(LONGEST_LESSON)
        return [(self._sessions * (1 + length), each) for length, each in enumerate(verify)]

    @property
    def settled(self) -> bool:
        """False while the best is hoped of what was not seen lately: what is decided then is decided to see it."""
        return self._expected is None or not self._expected.hopes

    def known(self, source: Source) -> bool:
        """False while rounds of the source (`Source.NONE`: plain ones) were timed too seldom, or too long ago.

        What is not chosen would otherwise never be measured again, and speculation must beat what plain decoding
        takes now.
        """
        if self._expected and (source is not Source.MODEL or self._expected.drafts):
            return True
        return self._here.times[source] >= ENOUGH and not self._is_old(source)

    def lesson(self, source: Source, longest: int) -> int:
        """The length of a guess that is made to learn its time: long at first, later just enough to tell."""
        return 1 if source in self._here.learned else min(longest, LONGEST_LESSON)

    def survey(self, length: int, longest: int) -> int:
        """`length`, but now and then its double or its half, whichever was measured less."""
        self._surveys += 1
        if self._surveys % SURVEY_EVERY or self._expected:
            return length
        return min(min(2 * length, longest), max(1, length // 2), key=self._here.verify.count)

    def _is_old(self, source: Source) -> bool:
        return self._rounds - self._here.last[source] >= (PLAIN_OLD if source is Source.NONE else OLD)

    def _mark(self, source: Source) -> None:
        # Source.NONE stands for plain rounds, NGRAM for rounds with any proposal, MODEL for drafts.
        here = self._here
        here.times[source] = 1 if self._is_old(source) else here.times[source] + 1
        here.last[source] = self._rounds
        if here.times[source] >= ENOUGH:
            here.learned.add(source)
