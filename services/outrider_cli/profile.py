"""`outrider profile`: what speculation would bring, measured in a process that has torch."""

from __future__ import annotations

import importlib.util
import os
import sys

import typer

from outrider.errors import ModelLoadError
from outrider_cli.terminal import errors_reported

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Every flag, --help included, is the profiling process's own."""


@errors_reported()
def profile(context: typer.Context) -> None:
    """Measure which draft and guess length pay for your prompts, and up to which concurrency.

    Times the target and each draft, plays the drafts over the target's own answers to the prompts, and predicts the
    speed-up by concurrency. `outrider profile --help` lists the flags.

    ```
    outrider profile --target big-model --draft small-model --prompts prompts.jsonl --out my-profile
    ```
    """
    if not {"-h", "--help"} & set(context.args) and importlib.util.find_spec("torch") is None:
        raise ModelLoadError("profiling runs the models on this machine: pip install 'outrider[engine]'")
    sys.stdout.flush()
    # Replaced, so that signals and exit codes are the profiling process's own.
    os.execv(sys.executable, [sys.executable, "-m", "outrider.profiling.main", *context.args])  # noqa: S606
