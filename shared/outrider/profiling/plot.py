"""A profile as a picture: speed-up by concurrency, acceptance by position, the time of a pass by what it judges."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.profiling.prediction import Forecast, Placement, best_by_concurrency
from outrider.profiling.result import Profile

COLOURS = ("#2a6f97", "#c8553d", "#588157", "#8d5a97", "#b08900", "#444444")
FEWEST_TRIALS = 10
"""Trials of a position from which its chance is drawn."""
STYLES = {Placement.SEQUENCE: "-", Placement.HIDDEN: ":"}


def plot_profile(profile: Profile, forecasts: Sequence[Forecast], path: Path) -> Path | None:
    """Write a PNG; None, and nothing else, where matplotlib is not installed (`pip install 'outrider[plot]'`)."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    temperatures = profile.temperatures
    figure = Figure(figsize=(15, 4.2 * len(temperatures)), layout="constrained")
    axes = figure.subplots(len(temperatures), 3, squeeze=False)
    for line, temperature in zip(axes, temperatures, strict=True):
        _speedups(line[0], profile, [each for each in forecasts if each.temperature == temperature])
        _acceptance(line[1], profile, temperature)
        _passes(line[2], profile, temperature)
        line[0].set_title(f"temperature {temperature:g}")
        for axis in line:
            axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{Path(profile.target).name}: {profile.answers} answers, {profile.target_times.context} tokens of context"
    )
    figure.savefig(path, dpi=120)
    return path


def _speedups(axis: Any, profile: Profile, forecasts: Sequence[Forecast]) -> None:
    axis.axhline(1.0, color="#999999", linewidth=1)
    for place, (colour, drafter) in enumerate(_coloured(profile)):
        for placement, style in STYLES.items():
            if placement is Placement.HIDDEN and drafter.times is None:
                continue
            own = [f for f in forecasts if (f.draft, f.placement, f.siblings) == (drafter.name, placement, 0)]
            picks = best_by_concurrency(own)
            label = drafter.name + (", hidden, at most" if placement is Placement.HIDDEN else "")
            counts = [pick.sessions for pick in picks]
            axis.plot(counts, [pick.speedup for pick in picks], style, marker="o", color=colour, label=label)
            for pick in picks if placement is Placement.SEQUENCE else ():
                where, shift = (pick.sessions, pick.speedup), (0, 5 if place else -13)
                axis.annotate(str(pick.length), where, shift, textcoords="offset points", ha="center", color=colour)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted({each.sessions for each in forecasts}))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("sessions at once")
    axis.set_ylabel("speed-up over plain decoding\n(numbers: best length of guess)")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize="small")


def _acceptance(axis: Any, profile: Profile, temperature: float) -> None:
    for colour, drafter in _coloured(profile):
        rounds = drafter.pooled(temperature).get(profile.lengths[-1])
        if rounds is not None:
            shown = [position for position in sorted(rounds.tried) if rounds.tried[position] >= FEWEST_TRIALS]
            chances = [rounds.stood[position] / rounds.tried[position] for position in shown]
            axis.plot(shown, chances, marker="o", color=colour, label=drafter.name)
    axis.set_ylim(0, 1.03)
    axis.set_title(f"positions tried {FEWEST_TRIALS} times or more", fontsize="small")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("position in the guess")
    axis.set_ylabel("chance to stand, if those before do")
    axis.legend(fontsize="small")


def _passes(axis: Any, profile: Profile, temperature: float) -> None:
    rows = profile.target_times.rows(temperature)
    for place, (sessions, row) in enumerate(rows.items()):
        shade = 0.85 - 0.75 * place / max(1, len(rows) - 1)
        label = f"{sessions} session{'s' * (sessions > 1)}"
        axis.plot([n + 1 for n in row], [ms / row[0] for ms in row.values()], marker=".", color=str(shade), label=label)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("positions a session and pass of the target")
    axis.set_ylabel("time, in passes of plain decoding")
    axis.legend(fontsize="small")


def _coloured(profile: Profile) -> list[tuple[str, Any]]:
    return [(COLOURS[place % len(COLOURS)], drafter) for place, drafter in enumerate(profile.drafters)]
