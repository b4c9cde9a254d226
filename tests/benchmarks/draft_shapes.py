"""Which shape of draft pays most on this machine: trained drafts against plain decoding and against each other.

    python -m tests.benchmarks.draft_shapes TARGET one=DIR two=DIR ... [--per-category 1] [--max-tokens 48]

A cluster of real processes for each draft, all up at once, one request at a time. Each question goes to every cluster,
in an order that turns, plain and speculative one right after the other; a speed-up is a ratio of such a pair, so that
other work on the machine falls on both. Beside it stands the same ratio of the services' processor time, which other
work disturbs less; all cores are busy in a forward pass, so that the two agree on a machine that does nothing else. The
questions are Spec-Bench's from the sixth of a category on, which no other record here uses. Everything is saved after
every question.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from outrider.client import Client, Drafter, RequestOptions
from outrider_cli.cluster import LocalCluster
from outrider_cli.comparison import timed
from tests.benchmarks.prompts import spec_bench
from tests.benchmarks.record import save

TIMEOUT_S = 300.0


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("drafts", nargs="+", help="NAME=DIRECTORY")
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--skip", type=int, default=5, help="questions of a category before those asked")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--max-draft-tokens", type=int, default=4)
    parser.add_argument("--name", default="draft_shapes")
    arguments = parser.parse_args()
    drafts = dict(text.split("=", 1) for text in arguments.drafts)
    flags = ["--kv-tokens", "8192"]
    options: RequestOptions = {
        "max_tokens": arguments.max_tokens,
        "max_draft_tokens": arguments.max_draft_tokens,
        "temperature": 0.0,
    }
    by_category = spec_bench(arguments.skip + arguments.per_category).items()
    places = range(arguments.skip, arguments.skip + arguments.per_category)
    questions = [(category, texts[n]) for n in places for category, texts in by_category]
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        clients: dict[str, tuple[Client, LocalCluster]] = {}
        for name, directory in drafts.items():
            cluster = stack.enter_context(
                LocalCluster(arguments.target, draft_model=directory, verifier_flags=flags, draft_flags=flags)
            )
            client = stack.enter_context(Client(cluster.address))
            clients[name] = (client, cluster)
            for drafter in (Drafter.NONE, Drafter.MODEL):
                timed(client, "Hello", {**options, "drafter": drafter, "max_tokens": 16}, TIMEOUT_S)
        for place, (category, text) in enumerate(questions):
            row: dict[str, Any] = {"category": category, "drafts": {}}
            turn = place % len(drafts)
            for name in [*drafts][turn:] + [*drafts][:turn]:
                row["drafts"][name] = pair(*clients[name], text, options, is_plain_first=place % 2 == 0)
            rows.append(row)
            result = {
                "seed": 0,
                "options": vars(arguments),
                "sizes": {name: size_of(Path(directory)) for name, directory in drafts.items()},
                "summary": summarize(rows),
                "rows": rows,
            }
            path = save(arguments.name, result)
            print(
                place,
                category,
                {k: (round(v["speedup"], 2), round(v["processor_speedup"], 2)) for k, v in row["drafts"].items()},
                flush=True,
            )
    print(path)
    for name, summary in summarize(rows).items():
        print(name, summary)


def pair(
    client: Client, cluster: LocalCluster, text: str, options: RequestOptions, *, is_plain_first: bool
) -> dict[str, Any]:
    """One question, plain and with the draft. The prompt is read in both; its processor time counts in both."""
    order = (Drafter.NONE, Drafter.MODEL) if is_plain_first else (Drafter.MODEL, Drafter.NONE)
    timed(client, text, {**options, "drafter": Drafter.MODEL, "max_tokens": 1}, TIMEOUT_S)  # the prefix caches know it
    runs, used = {}, {}
    for drafter in order:
        before = processor_seconds(cluster)
        runs[drafter] = timed(client, text, {**options, "drafter": drafter}, TIMEOUT_S)
        used[drafter] = processor_seconds(cluster) - before
    plain, guided = runs[Drafter.NONE], runs[Drafter.MODEL]
    speculation = guided.completion.speculation
    return {
        "identical": plain.completion.token_ids == guided.completion.token_ids,
        "tokens": len(plain.completion.token_ids),
        "plain_tokens_per_second": plain.tokens_per_second,
        "tokens_per_second": guided.tokens_per_second,
        "speedup": guided.tokens_per_second / plain.tokens_per_second if plain.tokens_per_second else 1.0,
        "plain_processor_seconds": used[Drafter.NONE],
        "processor_seconds": used[Drafter.MODEL],
        "processor_speedup": used[Drafter.NONE] / max(used[Drafter.MODEL], 0.01),
        "accepted_length": speculation.accepted_length,
        "acceptance_rate": speculation.acceptance_rate,
        "fallback_reason": speculation.fallback_reason,
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Per draft: speed-ups, and tokens a round."""
    found = {}
    for name in rows[0]["drafts"]:
        runs = [row["drafts"][name] for row in rows]
        found[name] = {
            "median_speedup": statistics.median(run["speedup"] for run in runs),
            "median_processor_speedup": statistics.median(run["processor_speedup"] for run in runs),
            "processor_speedup_over_all": sum(run["plain_processor_seconds"] for run in runs)
            / sum(run["processor_seconds"] for run in runs),
            "mean_accepted_length": statistics.mean(run["accepted_length"] for run in runs),
            "identical": f"{sum(run['identical'] for run in runs)} of {len(runs)}",
        }
    return found


def processor_seconds(cluster: LocalCluster) -> float:
    """What all services together have used so far."""
    ticks = 0
    for pid in cluster.pids.values():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def size_of(directory: Path) -> dict[str, int]:
    """What the draft is."""
    config = json.loads((directory / "config.json").read_text())
    return {key: config[key] for key in ("num_hidden_layers", "intermediate_size", "vocab_size")}


if __name__ == "__main__":
    main()
