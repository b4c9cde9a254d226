"""The stages of a profile: time the target, have it answer, play the drafts over the answers, time them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from outrider.acceptance.proposal import Source
from outrider.corpus import Answer, Corpus
from outrider.distill.collect import LEASE_S, Question, collect
from outrider.engine.core import ReplicaCore
from outrider.engine.draft import DraftCore
from outrider.engine.verify import VerifyCore
from outrider.errors import InvalidArgument
from outrider.profiling.acceptance import fits, ranks
from outrider.profiling.budget import affordable
from outrider.profiling.inputs import (
    OTHER,
    Draft,
    answers_path,
    chosen_prompts,
    given_answers,
    in_turns,
    load_models,
    questions_of,
)
from outrider.profiling.options import ProfileSettings
from outrider.profiling.result import NGRAMS, Measured, Profile
from outrider.profiling.rounds import Rounds, merged, play_guesses, play_ngrams
from outrider.profiling.steps import Grid, StepTimer, StepTimes, measure, seconds_per_token
from outrider.profiling.trees import Siblings, chances_beside, place_siblings

TARGET_SHARE, ANSWER_SHARE, RATING_SHARE = 0.35, 0.6, 0.5
"""Of the time left: for timing the target, then for its answers, then of each draft's own part for rating them."""

NOISY = 0.3
"""Spread of samples from which the times are called noisy."""


class Profiling:
    """One run. `models` may be looked at after `prepare`."""

    def __init__(self, settings: ProfileSettings, console: Console, directory: Path) -> None:
        """`directory`: where the answers are kept."""
        self._settings, self._console, self._directory = settings, console, directory
        self._notes: list[str] = []

    def prepare(self) -> None:
        """Read and load everything. Raises InvalidArgument and ModelLoadError for whatever is wrong with it."""
        settings = self._settings
        self._prompts = chosen_prompts(settings)
        self.models = load_models(settings, self._say)
        self._questions, self._collect = questions_of(self._prompts, self.models, settings)
        wanted = len(self._prompts) * len(settings.temperatures)
        if len(self._questions) < wanted:
            self._notes.append(
                f"{len(self._questions)} of {wanted} answers wanted: too long or repeated prompts left out"
            )
        fingerprint = self.models.target.info.vocabulary_fingerprint
        self._given = given_answers(settings, fingerprint)
        if not self._questions and not self._given:
            raise InvalidArgument("answers", [str(path) for path in settings.answers], "files with answers")
        self._context = self._context_length()

    def run(self) -> Profile:
        """Measure, within the budget."""
        settings = self._settings
        deadline = time.monotonic() + settings.budget_s
        target_times = self._time_target(settings.budget_s * TARGET_SHARE)
        answers = self._answers(target_times, (deadline - time.monotonic()) * ANSWER_SHARE)
        drafters = [self._ngrams(answers)]
        for place, draft in enumerate(self.models.drafts):
            left = (deadline - time.monotonic()) / (len(self.models.drafts) - place)
            drafters.append(self._draft(draft, answers, left))
        for timed in (target_times, *(drafter.times for drafter in drafters if drafter.times)):
            self._notes += timed.notes
            if timed.spread > NOISY:
                self._notes.append(
                    f"{timed.model}: samples of one time differ by {timed.spread:.0%} (median over the grid);"
                    " repeat this on a quiet machine"
                )
        there = {answer.temperature for answer in answers}
        return Profile(
            target=settings.target,
            target_times=target_times,
            drafters=tuple(drafters),
            temperatures=tuple(at for at in settings.temperatures if at in there),
            lengths=settings.lengths,
            network_ms=settings.network_ms,
            answers=len(answers),
            answer_tokens=sum(len(answer.answer) for answer in answers),
            notes=tuple(self._notes),
        )

    def _context_length(self) -> int:
        """Tokens of context at which passes are timed: a typical prompt, half of its answer. Raises InvalidArgument."""
        lengths = map(len, self._token_prompts())
        context = self._settings.context or max(16, int(median(lengths)) + self._settings.max_tokens // 2)
        longest = self._settings.lengths[-1]
        for engine in (self.models.target, *(draft.engine for draft in self.models.drafts)):
            if context + longest > (most := engine.info.context_length):
                limit = f"at most {most - longest}, what {engine.info.name} has room for beside a guess"
                raise InvalidArgument("context", context, limit)
        return context

    def _token_prompts(self) -> list[tuple[int, ...]]:
        """Of everything that is or will be answered."""
        return [*(question.prompt for question in self._questions), *(answer.prompt for answer in self._given)]

    def _time_target(self, budget_s: float) -> StepTimes:
        # The lengths' own times are what predictions use; 0 is plain decoding.
        core = VerifyCore(self.models.target, max_proposal=self._settings.lengths[-1], lease_s=LEASE_S)
        return self._time(core, "target", (0, *self._settings.lengths), self._settings.concurrencies, budget_s)

    def _time(
        self, core: ReplicaCore[Any], name: str, tokens: tuple[int, ...], sessions: tuple[int, ...], budget_s: float
    ) -> StepTimes:
        text = self._token_prompts()[0]
        grid = Grid(self._settings.temperatures, sessions, tokens, self._settings.repeats)
        timer = StepTimer(core, text, self._context)
        with self._bar(f"step times: {name}") as (bar, task):
            try:
                return measure(
                    name,
                    timer,
                    grid,
                    self._context,
                    budget_s,
                    lambda done, total: bar.update(task, completed=done, total=total),
                )
            finally:
                timer.close()

    def _answers(self, times: StepTimes, budget_s: float) -> list[Answer]:
        """What was given, and the target's answers to the prompts, as many as there is time for."""
        answers = [*self._given, *(self._collected(times, budget_s) if self._questions else ())]
        long_enough = [answer for answer in answers if len(answer.answer) > 1]  # no round is needed for the first token
        if not long_enough:
            raise InvalidArgument("answers", len(answers), "answers of which at least one has two tokens")
        return in_turns(long_enough, _group)

    def _collected(self, times: StepTimes, budget_s: float) -> list[Answer]:
        sessions, token_s = seconds_per_token(times)
        corpus = Corpus(
            answers_path(self._directory, self._settings, self.models.target.info),
            self.models.target.info.vocabulary_fingerprint,
        )
        known = {answer.key: answer for answer in corpus}
        questions = self._affordable(known, token_s, budget_s)
        core = VerifyCore(self.models.target, max_proposal=1, lease_s=LEASE_S)
        options = self._collect.model_copy(update={"sessions": sessions})
        with self._bar("answers of the target") as (bar, task):
            collect(
                core,
                questions,
                corpus,
                options,
                lambda done, total, tokens: bar.update(task, completed=done, total=total),
            )
        found = {answer.key: answer for answer in corpus}
        return [found[question.key] for question in questions]

    def _affordable(self, known: dict[str, Answer], token_s: float, budget_s: float) -> list[Question]:
        """The first questions that fit, those answered already for nothing; a prompt's tokens count as an answer's."""
        counts = [
            0 if question.key in known else len(question.prompt) + self._settings.max_tokens
            for question in self._questions
        ]
        number = max(affordable(counts, token_s, budget_s), min(len(counts), len(self._settings.temperatures)))
        if number < len(counts):
            self._notes.append(f"time for {number} of {len(counts)} answers of the target (--budget-s)")
        return self._questions[:number]

    def _ngrams(self, answers: Sequence[Answer]) -> Measured:
        played: dict[tuple[float, str], dict[int, list[Rounds]]] = defaultdict(lambda: defaultdict(list))
        for answer in answers:
            for length in self._settings.lengths:
                played[_group(answer)][length].append(play_ngrams(answer.prompt, answer.answer, length))
        flags = ("--drafter", "ngram")
        return Measured(NGRAMS, "", flags, Source.NGRAM, _merged(played), {}, {}, {}, None, answers=len(answers))

    def _draft(self, draft: Draft, answers: Sequence[Answer], budget_s: float) -> Measured:
        deadline = time.monotonic() + budget_s
        rated = self._rate(draft, answers, budget_s * RATING_SHARE)
        chains: dict[tuple[float, str], dict[int, list[Rounds]]] = defaultdict(lambda: defaultdict(list))
        by_temperature: dict[float, list[list[int]]] = defaultdict(list)
        for answer, found in rated:
            by_temperature[answer.temperature].append(found)
            for length in self._settings.lengths:
                chains[_group(answer)][length].append(play_guesses(found, length))
        beside = {at: chances_beside(lists) for at, lists in by_temperature.items()}
        siblings = self._siblings(by_temperature, beside)
        trees = {
            at: {
                (length, count): merged(play_guesses(ranks, length, each) for ranks in by_temperature[at])
                for (length, count), each in places.items()
            }
            for at, places in siblings.items()
        }
        core = DraftCore(draft.engine, max_proposal=self._settings.lengths[-1], lease_s=LEASE_S)
        # A guess is made token by token, so three lengths tell the rest.
        longest = self._settings.lengths[-1]
        tokens = tuple(sorted({1, max(1, longest // 2), longest}))
        times = self._time(core, draft.name, tokens, self._settings.concurrencies, deadline - time.monotonic())
        return Measured(
            draft.name,
            draft.model,
            draft.flags,
            Source.MODEL,
            _merged(chains),
            trees,
            siblings,
            beside,
            times,
            draft.trained,
            len(rated),
        )

    def _siblings(
        self, by_temperature: Mapping[float, Sequence[list[int]]], beside: Mapping[float, Sequence[float]]
    ) -> dict[float, Siblings]:
        """Where a draft's siblings are best, by its ranks; those numbers that have a place at every temperature."""
        lengths, places = self._settings.lengths, {}
        for at, lists in by_temperature.items():
            stands = merged(play_guesses(ranks, lengths[-1]) for ranks in lists).chances
            places[at] = place_siblings(stands, beside[at], lengths)
        common = set[tuple[int, int]].intersection(*map(set, places.values()))
        return {at: {key: found[key] for key in sorted(common)} for at, found in places.items()}

    def _rate(self, draft: Draft, answers: Sequence[Answer], budget_s: float) -> list[tuple[Answer, list[int]]]:
        """The draft's ranks of as many answers as there is time for; some of each temperature in any case."""
        usable = [answer for answer in answers if fits(draft.engine, answer)]
        if not usable:
            raise InvalidArgument("draft", draft.name, "one whose context holds at least one of the answers")
        deadline = time.monotonic() + budget_s
        found: list[tuple[Answer, list[int]]] = []
        with self._bar(f"{draft.name} over the answers") as (bar, task):
            for answer in usable:
                if time.monotonic() > deadline and len(found) >= len({_group(each) for each in usable}):
                    self._notes.append(f"{draft.name}: time for {len(found)} of {len(usable)} answers (--budget-s)")
                    break
                found.append((answer, ranks(draft.engine, answer, draft.vocabulary_size)))
                bar.update(task, completed=len(found), total=len(usable))
        if len(usable) < len(answers):
            self._notes.append(f"{draft.name}: {len(answers) - len(usable)} answers are longer than its context")
        return found

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def _bar(self, what: str) -> Iterator[tuple[Progress, TaskID]]:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console) as bar:
            yield bar, bar.add_task(what, total=None)


def _group(answer: Answer) -> tuple[float, str]:
    return answer.temperature, answer.category or OTHER


def _merged(
    played: dict[tuple[float, str], dict[int, list[Rounds]]],
) -> dict[tuple[float, str], dict[int, Rounds]]:
    return {
        group: {length: merged(parts) for length, parts in by_length.items()} for group, by_length in played.items()
    }
