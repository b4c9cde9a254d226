"""`outrider bench`: load on a running coordinator, speculation beside plain decoding."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.acceptance.params import Rule
from outrider.bench.notes import notes
from outrider.bench.options import BenchOptions, Limits, Point, concurrencies, drafters, request_rates
from outrider.bench.plot import plot_report
from outrider.bench.prompts import BUILT_IN
from outrider.bench.report import Report, report_point
from outrider.bench.sweep import sweep
from outrider.bench.table import latency_table, legend, speed_table
from outrider.client import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S, AsyncClient, ClientTls, Drafter, ServiceInfo
from outrider.errors import FailedPrecondition, InvalidArgument
from outrider.prompts import Prompt, read_prompts
from outrider_cli import options
from outrider_cli.machine import hardware, versions
from outrider_cli.terminal import connected, err, errors_reported, note, out, print_json, say

INFO_TIMEOUT_S = 10.0
_LOAD, _REPORT = "Load", "Report"


@errors_reported()
def bench(
    address: options.Address = DEFAULT_ADDRESS,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Prompts: .jsonl (prompt, messages, turns or raw) or .txt, one a line; repeatable. Default: built in.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(help="Requests in flight, one point of the sweep each.", metavar="N,N,...", rich_help_panel=_LOAD),
    ] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="Or: requests a second that arrive at random, whether or not earlier ones have ended.",
            metavar="X,X,...",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            help="Requests of each mode at each point. Default: 4 for each in flight, at least 16; 32 for a rate.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    turns: Annotated[
        int, typer.Option(help="Parts of a point in which the modes take turns; even.", rich_help_panel=_LOAD)
    ] = 2,
    warm_up: Annotated[
        int | None,
        typer.Option(
            help="Requests before each point and mode that are not counted. Default: the concurrency; 4 for a rate.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    max_tokens: options.MaxTokens = 128,
    ignore_eos: options.IgnoreEos = False,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: Annotated[
        int, typer.Option(help="Of arrivals, order of prompts and, counting up, requests.", rich_help_panel=_LOAD)
    ] = 0,
    drafter: Annotated[
        str,
        typer.Option(
            help="Who guesses: auto, model, ngram, or several of them; plain decoding is always measured.",
            metavar="NAME,...",
        ),
    ] = "auto",
    max_draft_tokens: options.MaxDraftTokens = None,
    fixed_length: options.FixedLength = False,
    rule: options.Rule = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs of the service, for tokens/s of each.", rich_help_panel=_REPORT)
    ] = None,
    slo_ttft_ms: Annotated[
        float | None,
        typer.Option(help="Goodput: requests whose first token came in this time.", rich_help_panel=_REPORT),
    ] = None,
    slo_tpot_ms: Annotated[
        float | None, typer.Option(help="Goodput: and each later token in this time.", rich_help_panel=_REPORT)
    ] = None,
    as_json: options.AsJson = False,
    out_directory: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Directory for bench.json, with every sample, and bench.png.", rich_help_panel=_REPORT
        ),
    ] = None,
    timeout: options.Timeout = DEFAULT_TIMEOUT_S,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
) -> None:
    """Put load on a running coordinator and measure speculation beside plain decoding, where a client sees it.

    Every point of the sweep runs plain decoding and each drafter in turns, with the same requests. Exit code 1 if a
    request failed, or if speculation changed an answer although the rule promises that it does not; refused requests
    are counted.

    ```
    outrider bench --concurrency 1,4,16 --max-tokens 128 --out results
    outrider bench --request-rate 0.5,2 --prompts questions.jsonl --slo-ttft-ms 500 --slo-tpot-ms 50
    ```
    """
    common = options.request_options(
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_draft_tokens=max_draft_tokens,
        fixed_length=fixed_length,
        rule=rule,
    )
    wanted = BenchOptions(
        points=_points(concurrency, request_rate),
        drafters=drafters(drafter),
        requests=requests,
        turns=turns,
        warm_up=warm_up,
        seed=seed,
        request=common,
        limits=Limits(slo_ttft_ms, slo_tpot_ms),
        gpus=gpus,
        timeout_s=timeout,
    )
    texts = [prompt for path in prompts or () for prompt in read_prompts(path)] or list(BUILT_IN)
    tls = options.client_tls(tls_ca, tls_cert, tls_key)
    service = _service(address, tls, wanted)
    path = _json_path(out_directory)
    about = _about(address, service, prompts or [], len(texts))
    effective = rule or service.default_speculation.rule
    empty = Report(about, wanted, ())
    with err.status("starting") as status:
        client = AsyncClient(address, tls=tls)
        report = asyncio.run(_measure(client, empty, texts, effective, path, status.update))
    if as_json:
        print_json(report.as_json())
    else:
        _show(report)
    if path is not None:
        _plot(report, path)
    if report.failed or report.differing:
        raise typer.Exit(1)


async def _measure(
    client: AsyncClient,
    report: Report,
    prompts: Sequence[Prompt],
    rule: Rule,
    path: Path | None,
    progress: Callable[[str], None],
) -> Report:
    """Add point after point, and save after each: a sweep that is interrupted leaves what it measured."""
    async with client:
        async for result in sweep(client, report.options, prompts, progress):
            report = replace(report, points=(*report.points, report_point(result, report.options, rule)))
            if path is not None:
                report.save(path)
    return report


def _points(concurrency: str | None, request_rate: str | None) -> tuple[Point, ...]:
    if concurrency is not None and request_rate is not None:
        raise typer.BadParameter("cannot go with --concurrency", param_hint="--request-rate")
    return request_rates(request_rate) if request_rate is not None else concurrencies(concurrency or "1,4,16")


def _service(address: str, tls: ClientTls | None, wanted: BenchOptions) -> ServiceInfo:
    """What the coordinator serves. Raises FailedPrecondition where a draft is to be measured and none is there."""
    with connected(address, tls) as client:
        service = client.model_info(timeout=INFO_TIMEOUT_S)
    if Drafter.MODEL in wanted.drafters and not service.drafts:
        raise FailedPrecondition(
            f"--drafter model needs a draft, but none is connected to the coordinator at {address}"
        )
    return service


def _json_path(directory: Path | None) -> Path | None:
    if directory is None:
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument("out", str(directory), f"a directory that can be written ({error})") from error
    return directory / "bench.json"


def _about(address: str, service: ServiceInfo, prompts: Sequence[Path], count: int) -> dict[str, Any]:
    """What the figures were measured with; of the service's machine, only what the service says of itself is known."""
    command = " ".join(["outrider", *sys.argv[1:]]).replace(str(Path.home()), "~")
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "client": {"hardware": hardware(), "versions": versions("grpcio", "protobuf")},
        "service": {"address": address, **asdict(service)},
        "prompts": {"files": [str(path) for path in prompts] or "built in", "count": count},
    }


def _show(report: Report) -> None:
    out.print(speed_table(report.points))
    out.print(latency_table(report.points))
    say(legend(report.points), style="dim")
    say(_where(report.about))
    summaries = [summary for point in report.points for summary in point.summaries.values()]
    requests = sum(summary.requests for summary in summaries)
    if sum(summary.completed for summary in summaries) == requests:
        say(f"All {requests} requests completed.")
    for line in notes(report.points):
        say(line, style="yellow")
    if report.differing:
        say("Answers differ: speculation changed the text, which is a bug. Please report it.", style="red")
    if report.failed:
        say(f"{report.failed} requests failed.", style="red")


def _where(about: dict[str, Any]) -> str:
    target, client = about["service"]["target"], about["client"]["hardware"]
    drafts = ", ".join(draft["name"] for draft in about["service"]["drafts"]) or "none"
    model = f"{target['name']}, {target['dtype']} on {target['device']}; drafts: {drafts}"
    return f"{model}; load from {client['processor']}, {client['cores']} cores"


def _plot(report: Report, path: Path) -> None:
    picture = path.with_name("bench.png")
    target = report.about["service"]["target"]
    title = f"{target['name']}, {target['dtype']} on {target['device']}"
    if plot_report(report.points, title, picture) is None:
        note(f"saved {path}; no picture, because matplotlib is missing: pip install 'outrider[plot]'")
    else:
        note(f"saved {path} and {picture}")
