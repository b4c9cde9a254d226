"""`outrider up`: a verifier, a draft service and a coordinator on this machine, until Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from outrider.client import Drafter
from outrider_cli import options
from outrider_cli.cluster import LocalCluster
from outrider_cli.terminal import err, errors_reported, note, print_json, say

_ADVANCED = "Advanced"
_SHARED_MEMORY = ("--memory-fraction", "0.4")
"""Verifier and draft size their KV caches by the same free memory, at about the same moment."""
_printing = threading.Lock()
"""A log line that is printed while the spinner goes away would bring it back."""


@errors_reported()
def up(
    model: Annotated[str, typer.Option(help="The target: a Hugging Face id, a directory or a .gguf file.")],
    draft_model: Annotated[
        str | None, typer.Option(help="A small model with the same vocabulary that guesses ahead.")
    ] = None,
    draft_layers: Annotated[
        int | None, typer.Option(min=1, help="Or: guess with the first layers of the target (or of --draft-model).")
    ] = None,
    drafter: options.Drafter = None,
    max_draft_tokens: options.MaxDraftTokens = None,
    rule: options.Rule = None,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is every network of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes a free one.")] = 7400,
    dtype: Annotated[str | None, typer.Option(help="Number type of the models, such as bfloat16.")] = None,
    quantization: Annotated[
        str | None, typer.Option(help="Weights of the target: none, int8 or int4 (with outrider[quantized]).")
    ] = None,
    draft_quantization: Annotated[str | None, typer.Option(help="The same for the draft model.")] = None,
    device: Annotated[str | None, typer.Option(help="Where the models run, such as cpu or cuda:0.")] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Verifier and draft in one process that does both in turns: for one GPU.")
    ] = False,
    as_json: options.AsJson = False,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that loading may take.", rich_help_panel=_ADVANCED)
    ] = 600.0,
    verifier_flags: Annotated[
        str, typer.Option(help="More flags for the verifier, in one string.", rich_help_panel=_ADVANCED)
    ] = "",
    draft_flags: Annotated[str, typer.Option(help="More flags for the draft service.", rich_help_panel=_ADVANCED)] = "",
    coordinator_flags: Annotated[
        str, typer.Option(help="More flags for the coordinator.", rich_help_panel=_ADVANCED)
    ] = "",
) -> None:
    """Start everything on this machine and keep it running until Ctrl-C.

    With --draft-model or --draft-layers a draft model guesses, otherwise repeats of the text so far are the guesses.
    The logs of the services go to stderr.

    ```
    outrider up --model Qwen/Qwen2.5-Coder-1.5B-Instruct --draft-model Qwen/Qwen2.5-Coder-0.5B-Instruct
    outrider up --model ./model.gguf --draft-layers 6 --port 7500
    ```
    """
    with_draft = draft_model is not None or draft_layers is not None
    if drafter is Drafter.MODEL and not with_draft:
        raise typer.BadParameter("model needs --draft-model or --draft-layers", param_hint="--drafter")
    if draft_quantization is not None and not with_draft:
        raise typer.BadParameter("needs --draft-model or --draft-layers", param_hint="--draft-quantization")
    if together and not with_draft:
        raise typer.BadParameter("needs --draft-model or --draft-layers", param_hint="--together")
    memory = () if together else _SHARED_MEMORY
    speculation = {
        "drafter": drafter or Drafter.AUTO,
        "max-draft-tokens": max_draft_tokens,
        "rule": rule,
    }
    cluster = LocalCluster(
        model,
        draft_model=draft_model,
        draft_layers=draft_layers,
        dtype=dtype,
        device=device,
        listen=f"{host}:{port}",
        coordinator_flags=[*_flags(speculation), *shlex.split(coordinator_flags)],
        verifier_flags=[*memory, *_flags({"quantization": quantization}), *shlex.split(verifier_flags)],
        draft_flags=[*memory, *_flags({"quantization": draft_quantization}), *shlex.split(draft_flags)],
        with_draft=with_draft,
        together=together,
        start_timeout_s=start_timeout,
        log=_show_log,
    )
    with _stopped_by_signals(cluster):
        _run(cluster, model, as_json)


def _flags(settings: Mapping[str, object]) -> list[str]:
    return [flag for name, value in settings.items() if value is not None for flag in (f"--{name}", str(value))]


def _run(cluster: LocalCluster, model: str, as_json: bool) -> None:
    """Start, serve until a signal, stop. Raises ServiceFailed if a service ends by itself."""
    try:
        with _spinner(f"loading {model}"):
            cluster.start()
        _announce(cluster, as_json)
        ended = cluster.wait_for_end(None)
        assert ended is not None
        raise ended.describe_end()
    except _Stopped:
        note("stopping; Ctrl-C again does not wait for running requests")
    finally:
        cluster.stop()


class _Stopped(BaseException):
    """Ctrl-C or SIGTERM. Not an Exception, so that nothing on the way takes it for an error."""


@contextmanager
def _stopped_by_signals(cluster: LocalCluster) -> Iterator[None]:
    """The first SIGINT or SIGTERM raises _Stopped in the main thread, every later one kills the services at once."""
    received = 0

    def stop(number: int, frame: object) -> None:
        nonlocal received
        received += 1
        if received == 1:
            raise _Stopped
        cluster.kill()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _show_log(role: str, line: str) -> None:
    if text := Text.from_ansi(line).plain.strip():  # colours and empty lines come from progress bars
        with _printing:
            note(f"{role:<11} | {text}", style="")


@contextmanager
def _spinner(what: str) -> Iterator[None]:
    """Shows that something goes on, and for how long, below the log lines."""
    text = TextColumn("{task.description}", markup=False)
    progress = Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=err, transient=True)
    progress.add_task(what, total=None)
    progress.start()
    try:
        yield
    finally:
        with _printing:
            progress.stop()


def _announce(cluster: LocalCluster, as_json: bool) -> None:
    address = cluster.address.replace("0.0.0.0:", "127.0.0.1:")
    if as_json:
        print_json({"address": address, "pids": cluster.pids})
        return
    say(f"Outrider is ready at {address}. Ctrl-C stops it. In another terminal:")
    say(f'  outrider generate --address {address} "Why is the sky blue?"')
