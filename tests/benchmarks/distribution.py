"""Chi-squared of the answers that clients receive over gRPC, with enough draws for an error of 0.01 in total variation.

    python -m tests.benchmarks.distribution RULE [--answers 80000]

A tiny random Llama, five tokens at temperature 1 and top_k 2: 32 possible answers, whose probabilities come from
transformers' logits in float64. Every request has a seed of its own. (Of four tokens, as once, all guesses are one
token long, and `block` is `rejection`.)
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.acceptance.params import Rule
from tests.benchmarks.record import save
from tests.cluster import running_cluster
from tests.distribution import TOKENS, TOP_K, measure
from tests.tiny_models import save_model


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rule", choices=list(Rule))
    parser.add_argument("--answers", type=int, default=80_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        rows = asyncio.run(run(save_model("llama", Path(home) / "llama"), arguments.rule, arguments.answers))
    print(save(f"distribution_{arguments.rule}", {"tokens": TOKENS, "top_k": TOP_K, "rows": rows}))


async def run(target: Path, rule: str, answers: int) -> list[dict[str, Any]]:
    """One rule with the model draft (two of the target's three layers) and with n-grams."""
    rows = []
    async with running_cluster(target, target, draft={"layers": 2}, max_sessions=64) as cluster:
        for seed, drafter in enumerate(("model", "ngram")):
            result = await measure(cluster, target, answers // 2, rule=rule, drafter=drafter, seed=seed)
            rows.append({"rule": rule, "drafter": drafter, "seed": seed, **asdict(result)})
            print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
