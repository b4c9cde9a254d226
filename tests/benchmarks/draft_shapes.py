"""Which shape of draft pays most on this machine: trained drafts against plain decoding and against each other.

    python -m tests.benchmarks.draft_shapes TARGET one=DIR two=DIR ... [--per-category 1] [--max-tokens 48]

A cluster of real processes for each draft, all up at once, one request at a time. Each question goes to every cluster,
in an order that turns, plain and speculative one right after the other; a speed-up is a ratio of such a pair, so that
other work on the machine falls on both. The questions are Spec-Bench's from the eleventh of a category on, which no
other record here uses. Everything is saved after every question.
"""

from __future__ import annotations

import argparse
import json
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
FIRST = 10


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("drafts", nargs="+", help="NAME=DIRECTORY")
    parser.add_argument("--per-category", type=int, default=1)
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
    by_category = spec_bench(FIRST + arguments.per_category).items()
    questions = [(category, texts[FIRST + n]) for n in range(arguments.per_category) for category, texts in by_category]
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        clients = {}
        for name, directory in drafts.items():
            cluster = stack.enter_context(
                LocalCluster(arguments.target, draft_model=directory, verifier_flags=flags, draft_flags=flags)
            )
            clients[name] = stack.enter_context(Client(cluster.address))
            for drafter in (Drafter.NONE, Drafter.MODEL):
                timed(clients[name], "Hello", {**options, "drafter": drafter, "max_tokens": 16}, TIMEOUT_S)
        for place, (category, text) in enumerate(questions):
            row: dict[str, Any] = {"category": category, "drafts": {}}
            turn = place % len(drafts)
            for name in [*drafts][turn:] + [*drafts][:turn]:
                row["drafts"][name] = pair(clients[name], text, options, is_plain_first=place % 2 == 0)
            rows.append(row)
            result = {
                "seed": 0,
                "options": vars(arguments),
                "sizes": {name: size_of(Path(directory)) for name, directory in drafts.items()},
                "summary": summarize(rows),
                "rows": rows,
            }
            path = save(arguments.name, result)
            print(place, category, {k: round(v["speedup"] or 0, 2) for k, v in row["drafts"].items()}, flush=True)
    print(path)
    for name, summary in summarize(rows).items():
        print(name, summary)


def pair(client: Client, text: str, options: RequestOptions, *, is_plain_first: bool) -> dict[str, Any]:
    """One question, plain and with the draft."""
    order = (Drafter.NONE, Drafter.MODEL) if is_plain_first else (Drafter.MODEL, Drafter.NONE)
    runs = {drafter: timed(client, text, {**options, "drafter": drafter}, TIMEOUT_S) for drafter in order}
    plain, guided = runs[Drafter.NONE], runs[Drafter.MODEL]
    speculation = guided.completion.speculation
    return {
        "identical": plain.completion.token_ids == guided.completion.token_ids,
        "tokens": len(plain.completion.token_ids),
        "plain_tokens_per_second": plain.tokens_per_second,
        "tokens_per_second": guided.tokens_per_second,
        "speedup": guided.tokens_per_second / plain.tokens_per_second if plain.tokens_per_second else None,
        "accepted_length": speculation.accepted_length,
        "acceptance_rate": speculation.acceptance_rate,
        "fallback_reason": speculation.fallback_reason,
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Per draft: the median speed-up, its mean in logarithms, and tokens a round."""
    found = {}
    for name in rows[0]["drafts"]:
        runs = [row["drafts"][name] for row in rows]
        speedups = [run["speedup"] for run in runs if run["speedup"]]
        found[name] = {
            "median_speedup": statistics.median(speedups) if speedups else None,
            "geometric_mean_speedup": statistics.geometric_mean(speedups) if speedups else None,
            "mean_accepted_length": statistics.mean(run["accepted_length"] for run in runs),
            "identical": f"{sum(run['identical'] for run in runs)} of {len(runs)}",
        }
    return found


def size_of(directory: Path) -> dict[str, int]:
    """What the draft is."""
    config = json.loads((directory / "config.json").read_text())
    return {key: config[key] for key in ("num_hidden_layers", "intermediate_size", "vocab_size")}


if __name__ == "__main__":
    main()
