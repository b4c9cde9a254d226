"""`outrider serve ROLE`: becomes one service."""

from __future__ import annotations

import os
import sys

import typer

# Everything after the role, --help included, belongs to the service.
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    no_args_is_help=True,
    help="Run one service in this process: a coordinator, a draft or a verifier.\n\n"
    "Flags after the role are the service's own; `outrider serve verifier --help` lists them.\n\n"
    "```\n"
    "outrider serve verifier --model big-model --listen 0.0.0.0:7401\n"
    "outrider serve draft --model small-model --listen 0.0.0.0:7402\n"
    "outrider serve coordinator --verifiers host-a:7401 --drafts host-b:7402 --listen 0.0.0.0:7400\n"
    "```",
)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def coordinator(context: typer.Context) -> None:
    """Take requests, own every generation, decide which guesses stand. Needs no GPU."""
    become("coordinator", context.args)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def draft(context: typer.Context) -> None:
    """Guess tokens with a small model."""
    become("draft", context.args)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def verifier(context: typer.Context) -> None:
    """Hold the target model and check guesses with it."""
    become("verifier", context.args)


def become(role: str, flags: list[str]) -> None:
    """Replace this process by the service, so that signals and exit codes are the service's own."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", f"outrider_{role}", *flags])  # noqa: S606 (no shell is the point)
