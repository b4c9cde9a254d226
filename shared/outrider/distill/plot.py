"""The report as a picture: acceptance rate and accepted length by category, before and after."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

UNTRAINED, DISTILLED = "#b8b8b8", "#2a6f97"


def plot_report(report: dict[str, Any], path: Path) -> Path | None:
    """Write a PNG; None, and nothing else, where matplotlib is not installed (`pip install 'outrider[plot]'`)."""
    if importlib.util.find_spec("matplotlib") is None or not report.get("distilled"):
        return None
    from matplotlib.figure import Figure

    temperatures = sorted(report["distilled"], key=float)
    figure = Figure(figsize=(11, 3.2 * len(temperatures)), layout="constrained")
    axes = figure.subplots(len(temperatures), 2, squeeze=False)
    for line, temperature in zip(axes, temperatures, strict=True):
        for axis, key, label in zip(line, ("rate", "length"), ("acceptance rate", "accepted length"), strict=True):
            _bars(axis, report, temperature, key)
            axis.set_ylabel(label)
            axis.set_title(f"temperature {temperature}")
    axes[0][0].legend()
    figure.savefig(path, dpi=120)
    return path


def _bars(axis: Any, report: dict[str, Any], temperature: str, key: str) -> None:
    distilled = report["distilled"][temperature]
    untrained = report.get("untrained", {}).get(temperature, {})
    categories = sorted(distilled, key=lambda name: (name != "all", name))
    for shift, rows, colour, label in (
        (-0.2, untrained, UNTRAINED, "untrained"),
        (0.2, distilled, DISTILLED, "distilled"),
    ):
        heights = [rows.get(category, {}).get(key) or 0.0 for category in categories]
        axis.bar([place + shift for place in range(len(categories))], heights, 0.38, color=colour, label=label)
    axis.set_xticks(range(len(categories)), categories, rotation=35, ha="right")
    axis.spines[["top", "right"]].set_visible(False)
