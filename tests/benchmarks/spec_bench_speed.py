"""Speculative against plain decoding over Spec-Bench, on this machine, real processes: the demo's model and draft.

    python -m tests.benchmarks.spec_bench_speed [--per-category 4] [--max-tokens 48] [--drafters auto]
    python -m tests.benchmarks.spec_bench_speed --model DIR --draft DIR --device cuda --together [--name NAME]

Greedy, one request at a time; the kinds of decoding take turns, question by question, in alternating order. A figure is
output tokens after the first chunk over the time after it. Everything is saved after every question.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from outrider.client import Client, Drafter, RequestOptions
from outrider_cli.cluster import LocalCluster
from outrider_cli.comparison import Run, timed
from outrider_cli.weights import demo_draft_directory, demo_model_directory
from tests.benchmarks.prompts import spec_bench
from tests.benchmarks.record import save

TIMEOUT_S = 300.0


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--max-draft-tokens", type=int, default=4)
    parser.add_argument("--drafters", nargs="+", default=["auto"], choices=["auto", "model", "ngram"])
    parser.add_argument("--model", help="directory of the target; default: the demo's")
    parser.add_argument("--draft", help="directory of the draft; default: the demo's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", help="of both models")
    parser.add_argument("--together", action="store_true", help="the verifier has the draft in its own process")
    parser.add_argument("--name", default="spec_bench_speed", help="of the record")
    arguments = parser.parse_args()
    drafters = [Drafter.NONE, *map(Drafter, arguments.drafters)]
    model = Path(arguments.model) if arguments.model else demo_model_directory(print)
    draft = Path(arguments.draft) if arguments.draft else demo_draft_directory(model, print)
    flags = ["--kv-tokens", "8192"]
    options: RequestOptions = {
        "max_tokens": arguments.max_tokens,
        "max_draft_tokens": arguments.max_draft_tokens,
        "temperature": 0.0,
    }
    by_category = spec_bench(arguments.per_category).items()
    # Every category once, then every category again: a run that is stopped has some of each.
    questions = [(category, texts[n]) for n in range(arguments.per_category) for category, texts in by_category]
    rows: list[dict[str, Any]] = []
    with (
        LocalCluster(
            str(model),
            draft_model=str(draft),
            dtype=arguments.dtype,
            device=arguments.device,
            verifier_flags=flags,
            draft_flags=flags,
            together=arguments.together,
        ) as cluster,
        Client(cluster.address) as client,
    ):
        for drafter in drafters:
            timed(client, "Hello", {**options, "drafter": drafter, "max_tokens": 16}, TIMEOUT_S)
        for place, (category, text) in enumerate(questions):
            order = drafters if place % 2 else drafters[::-1]
            runs = {drafter: timed(client, text, {**options, "drafter": drafter}, TIMEOUT_S) for drafter in order}
            rows.append(row_of(category, runs))
            result = {"seed": 0, "options": {**vars(arguments)}, "summary": summarize(rows), "rows": rows}
            path = save(arguments.name, result)
            print(place, category, {k: round(v, 2) for k, v in rows[-1]["speedup"].items()}, flush=True)
    print(path)
    for name, row in summarize(rows).items():
        print(name, row)


def row_of(category: str, runs: dict[Drafter, Run]) -> dict[str, Any]:
    """One question with every drafter."""
    plain = runs[Drafter.NONE]
    return {
        "category": category,
        "identical": all(run.completion.token_ids == plain.completion.token_ids for run in runs.values()),
        "speedup": {
            str(drafter): run.tokens_per_second / plain.tokens_per_second
            for drafter, run in runs.items()
            if drafter is not Drafter.NONE and plain.tokens_per_second and run.tokens_per_second
        },
        "runs": {
            str(drafter): {
                "tokens": len(run.completion.token_ids),
                "first_chunk_s": run.first_chunk_s,
                "first_chunk_tokens": run.first_chunk_tokens,
                "total_s": run.total_s,
                "tokens_per_second": run.tokens_per_second,
                "acceptance_rate": run.completion.speculation.acceptance_rate,
                "accepted_length": run.completion.speculation.accepted_length,
                "fallback_reason": run.completion.speculation.fallback_reason,
            }
            for drafter, run in runs.items()
        },
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Per drafter: the median speed-up over all questions and by category; how many answers were identical."""
    drafters = sorted({name for row in rows for name in row["speedup"]})
    categories = sorted({row["category"] for row in rows})
    return {"identical": f"{sum(row['identical'] for row in rows)} of {len(rows)}"} | {
        name: {
            "median": _median([row["speedup"][name] for row in rows if name in row["speedup"]]),
            "by_category": {
                category: _median(
                    [row["speedup"][name] for row in rows if row["category"] == category and name in row["speedup"]]
                )
                for category in categories
            },
        }
        for name in drafters
    }


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


if __name__ == "__main__":
    main()
