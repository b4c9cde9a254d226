"""What the numbers say, in words: which draft and length, up to which concurrency, and when to distill instead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.acceptance.choice import BEGIN_MARGIN
from outrider.acceptance.proposal import Source
from outrider.profiling.prediction import Forecast, Pick, Placement, best_by_concurrency, crossover
from outrider.profiling.result import Measured, Profile
from outrider.profiling.rounds import merged

ADVICE_LENGTH = 4
"""Acceptance falls with the length of the guess; drafts are judged at the coordinator's default `max_draft_tokens`."""
WORTH_NAMING = 0.01
"""Least gain of siblings, in speed-up, that is named."""
LOW_ACCEPTANCE = 0.5
"""The coordinator's default `fallback_acceptance`: below it a request gives speculation up."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The best choices, and lines for people."""

    picks: dict[Placement, list[Pick]]
    crossover: dict[Placement, int | None]
    lines: tuple[str, ...]


def advise(profile: Profile, forecasts: Sequence[Forecast], prompts: Sequence[str]) -> Advice:
    """`prompts`: the files, for the command that distills."""
    picks = {placement: best_by_concurrency(_chains(forecasts, placement)) for placement in Placement}
    ends = {placement: crossover(found) for placement, found in picks.items()}
    by_name = {drafter.name: drafter for drafter in profile.drafters}
    lines = _what_to_use(profile, picks[Placement.SEQUENCE], ends[Placement.SEQUENCE], by_name)
    models = {drafter.name for drafter in profile.drafters if drafter.times}
    if models:
        of_models = best_by_concurrency(each for each in _chains(forecasts, Placement.HIDDEN) if each.draft in models)
        lines += _hidden(of_models, crossover(of_models))
        lines += _trees(profile, forecasts)
    lines += _distill(profile, prompts)
    return Advice(picks, ends, tuple(lines))


def acceptance(drafter: Measured, length: int) -> float | None:
    """Accepted / proposed tokens over all answers, at one length of the guess."""
    return merged(by_length[length] for by_length in drafter.chains.values()).rate


def judged_at(lengths: Sequence[int]) -> int:
    """Of the profiled lengths the one at which drafts are judged."""
    return max((length for length in lengths if length <= ADVICE_LENGTH), default=lengths[0])


def _chains(forecasts: Sequence[Forecast], placement: Placement) -> list[Forecast]:
    return [each for each in forecasts if each.placement is placement and not each.siblings]


def _what_to_use(profile: Profile, picks: Sequence[Pick], end: int | None, by_name: dict[str, Measured]) -> list[str]:
    first = next((pick for pick in picks if pick.pays), None)
    if first is None:
        best = max(picks, key=lambda pick: pick.speedup)
        return [
            f"Serve without speculation: the best guess, {_of(best)}, is expected to be {best.speedup:.2f} times as"
            f" fast as plain decoding, and the coordinator begins at {1 + BEGIN_MARGIN:.2f}."
        ]
    drafter = by_name[first.draft]
    longest = profile.longest_useful(drafter, first.sessions)
    flags = [*drafter.flags, "--max-draft-tokens", str(longest)]
    command = shlex.join(["outrider", "up", "--model", profile.target, *flags])
    lines = [
        f"Use {_of(first)}: {first.speedup:.2f} times as fast as plain decoding with {_sessions(first.sessions)}.",
        f"  {command}",
        f"The coordinator chooses the length round by round; some category gains from up to {longest}.",
    ]
    if end is None:
        last = picks[-1]
        lines.append(
            f"It still pays with {_sessions(last.sessions)}, the most that were timed: {last.speedup:.2f} times with"
            f" {_of(last)}."
        )
    else:
        lines.append(f"From {_sessions(end)} on nothing pays any more; the coordinator then decodes plainly by itself.")
    rate = merged(by_length[first.length] for by_length in drafter.chains.values()).rate_of_tried
    if rate is not None and rate < LOW_ACCEPTANCE:
        lines.append(
            f"Of guesses of {first.length} tokens {rate:.0%} of those tried stand, below fallback_acceptance"
            f" ({LOW_ACCEPTANCE:g}): the coordinator shortens them, or decodes plainly, unless that is set lower"
            " (docs/control.md)."
        )
    return lines


def _hidden(picks: Sequence[Pick], end: int | None) -> list[str]:
    best = picks[0]
    until = "at every concurrency timed" if end is None else f"below {_sessions(end)}"
    gain = f"{best.speedup:.2f} times with {_sessions(best.sessions)} and {_of(best)}"
    if not best.pays and end == best.sessions:
        return [f"A draft on a device of its own, its work hidden behind the target's, would not pay either: {gain}."]
    return [
        f"With the draft on a device of its own and its work hidden behind the target's, at most: {gain};"
        f" it would pay {until}."
    ]


def _trees(profile: Profile, forecasts: Sequence[Forecast]) -> list[str]:
    """What siblings would add to a model's chains, where they are at their best, and up to which concurrency."""
    found = [each for each in forecasts if each.placement is Placement.SEQUENCE]
    trees = best_by_concurrency(each for each in found if each.siblings)
    models = {pick.draft for pick in trees}
    chains = {
        pick.sessions: pick.speedup
        for pick in best_by_concurrency(each for each in found if not each.siblings and each.draft in models)
    }
    better = [tree for tree in trees if tree.speedup >= max(1.0, chains[tree.sessions] + WORTH_NAMING)]
    if not better:
        return ["Siblings beside the chain (a tree) would not bring more."] if trees else []
    best = max(better, key=lambda tree: tree.speedup - chains[tree.sessions])
    siblings = f"{best.siblings} sibling" + "s" * (best.siblings > 1)
    until = f", and bring something up to {_sessions(better[-1].sessions)}" if better[-1] is not best else ""
    return [
        f"Trees: {_of(best)} with {siblings} give {best.speedup:.2f} instead of {chains[best.sessions]:.2f} times"
        f" with {_sessions(best.sessions)}{until}.",
        f"  beside the first token, the second, ...: {_places(profile, best)}; the coordinator chooses them by itself.",
    ]


def _places(profile: Profile, tree: Pick) -> str:
    (drafter,) = (each for each in profile.drafters if each.name == tree.draft)
    places = {at: found[tree.length, tree.siblings] for at, found in drafter.siblings.items()}
    if len(set(places.values())) == 1:
        return " ".join(map(str, next(iter(places.values()))))
    return ", ".join(f"{' '.join(map(str, beside))} at temperature {at:g}" for at, beside in places.items())


def _distill(profile: Profile, prompts: Sequence[str]) -> list[str]:
    length = judged_at(profile.lengths)
    models = [drafter for drafter in profile.drafters if drafter.source is Source.MODEL]
    rates = {drafter.name: rate for drafter in models if (rate := acceptance(drafter, length)) is not None}
    if rates and max(rates.values()) >= LOW_ACCEPTANCE:
        return []
    files = prompts or ("PROMPTS.jsonl",)
    flags = [part for path in files for part in ("--prompts", path)]
    command = shlex.join(["outrider", "distill", "--target", profile.target, *flags, "--out", "my-draft"])
    if not rates:
        why = "No draft model was given"
    else:
        name, rate = max(rates.items(), key=lambda item: item[1])
        why = f"Of guesses of {length} tokens by the best draft model ({name}) {rate:.0%} stand, fewer than half"
    if any(drafter.trained for drafter in models):
        return [
            f"{why}. It was distilled already: more answers, of your own traffic (--record-to), longer training:",
            f"  {command}",
        ]
    return [f"{why}: distill one instead, with as many prompts as you have.", f"  {command}"]


def _of(pick: Pick) -> str:
    return f"{pick.draft}, guesses of {pick.length} token{'s' * (pick.length > 1)}"


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions at once"
