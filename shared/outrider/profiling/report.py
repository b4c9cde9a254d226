"""A profile as tables for people and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.profiling.advice import Advice, judged_at
from outrider.profiling.budget import coarsened
from outrider.profiling.prediction import Forecast, Placement, best_by_concurrency
from outrider.profiling.result import Measured, Profile, acceptance_table
from outrider.profiling.rounds import Rounds

POSITIONS = 4
"""Positions of a guess whose acceptance is shown."""


def print_report(console: Console, profile: Profile, forecasts: Sequence[Forecast], advice: Advice) -> None:
    """Times, acceptance, speed-ups, advice."""
    for drafter in profile.drafters:
        if drafter.model:
            console.print(f"{drafter.name}: {drafter.model}", markup=False, soft_wrap=True)
    _show(console, _times(profile))
    _show(console, _acceptance(profile))
    _show(console, _categories(profile, advice))
    for placement in Placement:
        if placement is Placement.SEQUENCE or any(drafter.times for drafter in profile.drafters):
            _show(console, _speedups(profile, forecasts, placement))
    for note in profile.notes:
        console.print(f"Note: {note}.", markup=False, soft_wrap=True, style="dim")
    console.print()
    for line in advice.lines:
        console.print(line, markup=False, soft_wrap=True)


def _show(console: Console, table: Table) -> None:
    """Title and caption as lines of their own: rich would fold them to the table's width."""
    title, caption = str(table.title), str(table.caption or "")
    table.title = table.caption = None
    console.print(f"\n{title}", markup=False, soft_wrap=True, style="bold")
    console.print(table)
    if caption:
        console.print(caption, markup=False, soft_wrap=True, style="dim")


def as_json(profile: Profile, forecasts: Sequence[Forecast], advice: Advice) -> dict[str, Any]:
    """Everything, raw samples included."""
    timed = [profile.target_times, *(drafter.times for drafter in profile.drafters if drafter.times)]
    return {
        "target": profile.target,
        "answers": profile.answers,
        "answer_tokens": profile.answer_tokens,
        "network_ms": profile.network_ms,
        "notes": profile.notes,
        "advice": {
            "lines": advice.lines,
            "crossover": {str(placement): end for placement, end in advice.crossover.items()},
            "best": {
                str(placement): [asdict(pick) | {"pays": pick.pays} for pick in picks]
                for placement, picks in advice.picks.items()
            },
        },
        "forecasts": [asdict(forecast) for forecast in forecasts],
        "acceptance": {
            drafter.name: {
                "model": drafter.model,
                "answers": drafter.answers,
                "chances_beside": {f"{at:g}": chances for at, chances in drafter.beside.items()},
                "siblings": {
                    f"{at:g}": [
                        {"length": length, "siblings": count, "beside": beside}
                        for (length, count), beside in found.items()
                    ]
                    for at, found in drafter.siblings.items()
                },
                "by_temperature": acceptance_table(drafter),
            }
            for drafter in profile.drafters
        },
        "step_times": [asdict(times) | {"spread": times.spread} for times in timed],
    }


def _times(profile: Profile) -> Table:
    table = Table(title=f"Step times in ms, {profile.target_times.context} tokens of context")
    table.add_column("at\nonce", justify="right")
    shown = coarsened((0, *profile.lengths))
    for tokens in shown:
        table.add_column("target\nplain" if not tokens else f"target\n+{tokens}", justify="right")
    models = [(drafter, drafter.times) for drafter in profile.drafters if drafter.times]
    ends = tuple(dict.fromkeys((profile.lengths[0], profile.lengths[-1])))
    for drafter, _ in models:
        for tokens in ends:
            table.add_column(f"{drafter.name}\n{tokens}", justify="right")
    table.add_column("plain\ntok/s", justify="right")
    at = profile.temperatures[0]
    speeds = profile.plain_tokens_per_second(at)
    for sessions, row in profile.target_times.rows(at).items():
        cells = [_ms(row, tokens) for tokens in shown]
        for _, times in models:
            cells += [_ms(times.rows(at).get(sessions, {}), tokens) for tokens in ends]
        table.add_row(str(sessions), *cells, f"{speeds[sessions]:,.1f}")
    table.caption = "+N: judging N guessed tokens a session; a draft's N: guessing N tokens; median of the samples"
    if len(profile.temperatures) > 1:
        table.caption += f";\ntemperature {at:g}, the others are in the JSON report"
    return table


def _ms(row: dict[int, float], tokens: int) -> str:
    return f"{row[tokens]:,.1f}" if tokens in row else "-"


def _acceptance(profile: Profile) -> Table:
    length = judged_at(profile.lengths)
    table = Table(title=f"Acceptance, guesses of {length} tokens")
    for name in ("draft", "T"):
        table.add_column(name)
    for name in (*(f"at {position}" for position in range(1, min(POSITIONS, length) + 1)), "rate", "tokens\n/round"):
        table.add_column(name, justify="right")
    table.add_column("2nd\nchoice", justify="right")
    for drafter in profile.drafters:
        for place, temperature in enumerate(profile.temperatures):
            rounds = drafter.pooled(temperature).get(length)
            if rounds is not None and rounds.rounds:
                name = drafter.name if not place else ""
                table.add_row(name, f"{temperature:g}", *_counts(rounds, length), _second(drafter, temperature))
        table.add_section()
    table.caption = (
        "at N: how often the N-th guessed token stands, of those whose predecessors did; rate: accepted / proposed;\n"
        "2nd choice: of the tokens that the draft misses, those that are its second choice"
    )
    return table


def _counts(rounds: Rounds, length: int) -> list[str]:
    chances = [f"{chance:.2f}" for chance in rounds.chances[: min(POSITIONS, length)]]
    chances += ["-"] * (min(POSITIONS, length) - len(chances))
    rate, tokens = rounds.rate, rounds.length
    return [*chances, "-" if rate is None else f"{rate:.2f}", "-" if tokens is None else f"{tokens:.2f}"]


def _second(drafter: Measured, temperature: float) -> str:
    chances = drafter.beside.get(temperature)
    return f"{chances[0]:.0%}" if chances else "-"


def _categories(profile: Profile, advice: Advice) -> Table:
    """The drafter that is best at the smallest concurrency, category by category."""
    pick = advice.picks[Placement.SEQUENCE][0]
    (drafter,) = (each for each in profile.drafters if each.name == pick.draft)
    title = f"By category: {pick.draft}, guesses of {pick.length}, {pick.sessions} at once, in sequence"
    table = Table(title=title)
    table.add_column("category")
    for temperature in profile.temperatures:
        for name in ("at 1", "rate", "/round", "gain"):
            table.add_column(f"{name}\nT={temperature:g}", justify="right")
    gains = {at: profile.by_category(drafter, at, pick.length, pick.sessions) for at in profile.temperatures}
    for category in drafter.categories:
        cells: list[str] = []
        for temperature in profile.temperatures:
            rounds = drafter.chains.get((temperature, category), {}).get(pick.length)
            if rounds is None or category not in gains[temperature]:
                cells += ["-"] * 4
            else:
                first, *_, rate, tokens = _counts(rounds, pick.length)
                cells += [first, rate, tokens, f"{gains[temperature][category]:.2f}x"]
        table.add_row(category, *cells)
    return table


def _speedups(profile: Profile, forecasts: Sequence[Forecast], placement: Placement) -> Table:
    title = (
        "draft and target in turns" if placement is Placement.SEQUENCE else "draft hidden behind the target, at most"
    )
    table = Table(title=f"Expected speed-up by concurrency, {title}")
    table.add_column("draft")
    table.add_column("T")
    counts = sorted({forecast.sessions for forecast in forecasts})
    for sessions in counts:
        table.add_column(str(sessions), justify="right")
    for drafter in profile.drafters:
        if placement is Placement.HIDDEN and drafter.times is None:
            continue
        for place, temperature in enumerate(profile.temperatures):
            own = [
                each
                for each in forecasts
                if (each.draft, each.temperature, each.placement) == (drafter.name, temperature, placement)
            ]
            best = {pick.sessions: pick for pick in best_by_concurrency(each for each in own if not each.siblings)}
            cells = [f"{best[n].speedup:.2f}x ({best[n].length})" if n in best else "-" for n in counts]
            table.add_row(drafter.name if not place else "", f"{temperature:g}", *cells)
    table.caption = "over plain decoding at the same concurrency; in brackets the length of the guess"
    return table
