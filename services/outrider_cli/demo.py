"""`outrider demo`: plain decoding beside speculation, on this machine, with real weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.rule import Rule
from rich.table import Table

from outrider.client import Client, Drafter, RequestOptions, ServiceInfo
from outrider_cli import options
from outrider_cli.cluster import LocalCluster
from outrider_cli.comparison import DRAFTER_NAMES, DRAFTERS, Comparison, compare, timed, verdicts
from outrider_cli.machine import hardware, versions
from outrider_cli.prompts import PROMPTS
from outrider_cli.terminal import err, errors_reported, out, print_json, printable, say
from outrider_cli.weights import demo_draft_directory, demo_model_directory

MAX_DRAFT_TOKENS = 4
WARM_UP_TOKENS = 16
LEGEND = (
    "accepted: guesses that stand; tokens/pass: tokens for each forward pass of the target; "
    "bytes/token: between the coordinator and the models' services"
)
KV_FLAGS = ("--kv-tokens", "8192")
"""Plenty for one short answer at a time; the services would take most of the memory."""


@errors_reported()
def demo(
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 96,
    temperature: Annotated[float, typer.Option(min=0, help="0 always takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every request.")] = 0,
    draft_layers: Annotated[
        int | None, typer.Option(min=1, help="Draft with this many first layers of the target, not the trained draft.")
    ] = None,
    max_draft_tokens: Annotated[int, typer.Option(min=1, help="Longest guess, in tokens.")] = MAX_DRAFT_TOKENS,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each kind; the table shows medians.")] = 1,
    as_json: options.AsJson = False,
    timeout: options.Timeout = 300.0,
) -> None:
    """Show what speculation brings on this machine: a small model, three prompts, plain decoding beside two drafters.

    Fetches SmolLM2-135M-Instruct once (about 100 MB), then starts a verifier, a draft service and a coordinator. Every
    answer must be identical with and without speculation, otherwise the exit code is 1.

    ```
    outrider demo
    outrider demo --repeats 3 --json > result.json
    ```
    """
    request: RequestOptions = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "max_draft_tokens": max_draft_tokens,
    }
    with err.status("starting") as status:
        model = demo_model_directory(status.update)
        draft = demo_draft_directory(model, status.update) if draft_layers is None else model
        status.update("starting a verifier, a draft service and a coordinator")
        cluster = LocalCluster(
            str(model),
            draft_model=str(draft),
            draft_layers=draft_layers,
            verifier_flags=KV_FLAGS,
            draft_flags=KV_FLAGS,
        )
        with cluster, Client(cluster.address) as client:
            comparisons = measure(client, request, repeats, timeout, status.update)
            report = {
                "draft_layers": draft_layers,
                "request": request,
                **environment(client.model_info()),
                "identical": all(is_identical(comparison) for comparison in comparisons),
                "prompts": [comparison.as_json() for comparison in comparisons],
            }
    if as_json:
        print_json(report)
    else:
        show(comparisons, report)
    if not report["identical"]:
        raise typer.Exit(1)


def measure(
    client: Client, request: RequestOptions, repeats: int, timeout: float, progress: Callable[[str], None]
) -> list[Comparison]:
    """One warm-up request for each drafter, then every prompt with every drafter."""
    progress("warming up")
    for drafter in DRAFTERS:
        warm_up: RequestOptions = {**request, "drafter": drafter, "max_tokens": WARM_UP_TOKENS}
        timed(client, "Hello", warm_up, timeout)
    return [
        compare(client, name, prompt, request, repeats=repeats, timeout=timeout, progress=progress)
        for name, prompt in PROMPTS.items()
    ]


def is_identical(comparison: Comparison) -> bool:
    """True if speculation changed nothing in the answer."""
    return all(comparison.identical(drafter) for drafter in DRAFTERS)


def environment(service: ServiceInfo) -> dict[str, Any]:
    """What the numbers were measured with."""
    target = service.target
    where = {**hardware(), "device": target.device, "dtype": target.dtype}
    models = {
        "model": target.name,
        "parameters": target.parameters,
        "draft_parameters": sum(draft.parameters for draft in service.drafts),
    }
    return {**models, "hardware": where, "versions": versions("grpcio", "torch", "transformers")}


def show(comparisons: Sequence[Comparison], report: dict[str, Any]) -> None:
    """Answers and tables for people."""
    for comparison in comparisons:
        out.print(Rule(comparison.name, align="left"))
        say(comparison.prompt, style="dim")
        say(printable(comparison.plain.completion.text).strip())
        out.print(_table(comparison))
        for run in comparison.runs:
            if reason := run.completion.speculation.fallback_reason:
                say(f"{DRAFTER_NAMES[run.drafter]}: speculation stopped during the answer: {reason}")
    hardware = report["hardware"]
    where = f"{hardware['device']}; {hardware['processor']}, {hardware['cores']} cores"
    say(LEGEND, style="dim")
    say(f"{report['model']}, {hardware['dtype']} on {where}")
    size = report["draft_parameters"] / report["parameters"]
    layers = report["draft_layers"]
    kind = "trained for it (outrider distill)" if layers is None else f"its first {layers} layers"
    say(f"draft model: {kind}, {size:.0%} of its size, on the same cores")
    for line in verdicts(comparisons):
        say(line)
    if len(comparisons[0].of(Drafter.NONE)) == 1:
        say("One run of each: small differences mean nothing; --repeats 3 takes medians.", style="dim")
    if report["identical"]:
        say("All answers are identical with and without speculation.")
    else:
        say("Answers differ: speculation changed the text, which is a bug. Please report it.", style="red")


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("tokens/s", "speed-up", "accepted", "tokens/pass", "bytes/token", "identical"):
        table.add_column(heading, justify="right", no_wrap=True)
    for drafter in DRAFTERS:
        run = comparison.of(drafter)[0]
        stats = run.completion.speculation
        table.add_row(
            DRAFTER_NAMES[drafter],
            f"{comparison.speed(drafter):.1f}",
            "" if drafter is Drafter.NONE else f"{comparison.speedup(drafter):.2f}x",
            "" if stats.acceptance_rate is None else f"{stats.acceptance_rate:.0%}",
            f"{stats.accepted_length:.2f}",
            f"{run.wire_bytes_per_token:.0f}",
            "yes" if comparison.identical(drafter) else "NO",
        )
    return table
