"""What commands share in talking to the terminal: answers on stdout, everything else on stderr, errors as one line."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from outrider.client import Client, ClientTls, Completion, Drafter
from outrider.errors import OutriderError, Unavailable

INTERRUPTED = 130  # the shells' code for Ctrl-C

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def say(text: str, *, style: str = "") -> None:
    """A line for people on stdout."""
    out.print(text, style=style, markup=False, soft_wrap=True)


def note(text: str, *, style: str = "dim") -> None:
    """A line beside the answer, on stderr."""
    err.print(text, style=style, markup=False, soft_wrap=True)


@contextmanager
def errors_reported() -> Iterator[None]:
    """Decorates a command: what Outrider raises becomes one line on stderr and exit code 1, never a traceback."""
    try:
        yield
    except OutriderError as error:
        typer.secho(f"Error: {error}", err=True, fg="red")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo(err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader (`| head`) has gone. Point stdout elsewhere, so that its last flush does not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


@contextmanager
def connected(address: str, tls: ClientTls | None = None) -> Iterator[Client]:
    """A client of the coordinator at `address`; if nobody answers there, the error says what to do.

    Its API key is what OUTRIDER_API_KEY holds: a flag would show it to every user of the machine.
    """
    with Client(address, tls=tls) as client:
        try:
            yield client
        except Unavailable as error:
            hint = "Is it running? `outrider up --model MODEL` starts one; --address says where it is."
            if tls is None:
                hint += " If it serves encrypted, --tls-ca is needed."
            raise Unavailable(f"no answer from {address} ({error}). {hint}") from error


def print_json(value: Any) -> None:
    """One line of JSON on stdout; dataclasses become objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    typer.echo(json.dumps(value, ensure_ascii=False))


def write(text: str) -> None:
    """Text of the model to stdout, at once. A terminal is protected from control sequences in it."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def printable(text: str) -> str:
    """The text without control characters other than newline and tab."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def stats_line(completion: Completion) -> str:
    """How long the answer took and what the guesses brought, in one line."""
    tokens, seconds = completion.usage.completion_tokens, completion.timings.total_s
    parts = [f"{tokens} tokens in {seconds:.2f} s"]
    if seconds > 0:
        parts.append(f"{tokens / seconds:.1f} tokens/s")
    if completion.usage.cached_tokens:
        parts.append(f"{completion.usage.cached_tokens} of {completion.usage.prompt_tokens} prompt tokens kept")
    stats = completion.speculation
    if stats.drafter is Drafter.NONE:
        parts.append("plain decoding")
    elif stats.acceptance_rate is None:
        parts.append(f"{stats.drafter}: nothing to guess")
    else:
        accepted = f"{stats.accepted_tokens} of {stats.proposed_tokens} guesses accepted"
        parts.append(f"{stats.drafter}: {accepted}, {stats.accepted_length:.2f} tokens per pass of the target")
    if stats.fallback_reason:
        parts.append(f"speculation stopped: {stats.fallback_reason}")
    return " · ".join(parts)
