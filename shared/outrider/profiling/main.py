"""A profile from the command line; `outrider profile` runs this in a process of its own.

python -m outrider.profiling.main --target T --draft D --prompts FILE [--out DIR]
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from outrider.config import load
from outrider.errors import OutriderError
from outrider.profiling.options import ProfileSettings
from outrider.telemetry.logs import configure

PROG = "outrider profile"
INTERRUPTED = 128 + signal.SIGINT


def profile(settings: ProfileSettings, arguments: list[str], directory: Path) -> None:
    """Measure, print, and write the report where there is an --out. `directory` keeps the answers."""
    # Here, so that --help and mistakes in flags need no torch; the engine before it, see outrider.engine.
    import outrider.engine.engine  # noqa: F401

    import torch  # isort: skip
    from outrider.profiling.advice import advise
    from outrider.profiling.environment import busy_note, environment
    from outrider.profiling.plot import plot_profile
    from outrider.profiling.report import as_json, print_report
    from outrider.profiling.stages import Profiling

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    notes = Console(stderr=True)
    try:
        run = Profiling(settings, notes, directory)
        run.prepare()
        where = environment(arguments, run.models.target.device)
        for note in busy_note():
            notes.print(f"Note: {note}.", markup=False, highlight=False)
        found = run.run()
    except torch.OutOfMemoryError as error:
        _fail(f"the device has too little memory: {error}; lower --sessions or --max-tokens")
    forecasts = found.forecasts()
    advice = advise(found, forecasts, [str(path) for path in settings.prompts])
    report = {"environment": where, "settings": settings.model_dump(mode="json")} | as_json(found, forecasts, advice)
    if settings.json:
        print(json.dumps(report))
    else:
        print_report(Console(highlight=False), found, forecasts, advice)
    if settings.out is not None:
        path = settings.out / "profile.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
        picture = plot_profile(found, forecasts, settings.out / "profile.png")
        drawn = f"and {picture}" if picture else "(no picture: pip install 'outrider[plot]')"
        notes.print(f"report: {path} {drawn}", markup=False, highlight=False)


def _fail(message: str) -> NoReturn:
    sys.exit(f"{PROG}: {message}")


def main() -> None:
    """Entry point of the module."""
    arguments = sys.argv[1:]
    try:
        settings = load(ProfileSettings, arguments, PROG)
        configure(settings.log_level)
        if settings.out is not None:
            settings.out.mkdir(parents=True, exist_ok=True)
            profile(settings, arguments, settings.out)
        else:
            with tempfile.TemporaryDirectory(prefix="outrider-profile-") as directory:
                profile(settings, arguments, Path(directory))
    except (OutriderError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print(f"{PROG}: interrupted; with --out, the answers so far are kept", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
