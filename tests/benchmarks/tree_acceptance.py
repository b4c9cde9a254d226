"""Accepted length of chains and of trees of the same depth, with the demo's draft on Spec-Bench questions.

    python -m tests.benchmarks.tree_acceptance TARGET DRAFT [--per-category 2] [--siblings 2 4 8]

The real services in one process, over gRPC, under match; every round proposes K tokens, and with trees so many siblings
beside them. What stands does not depend on the machine, so no time is recorded.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import outrider.engine.engine  # noqa: F401  (before torch)

from transformers import AutoTokenizer  # isort: skip

from outrider.client import Completion
from outrider.distill.evaluate import Acceptance
from outrider_coordinator.request import TreeMode
from tests.benchmarks.draft_acceptance import TOGETHER, table
from tests.benchmarks.prompts import chat_ids, spec_bench
from tests.benchmarks.record import save
from tests.cluster import Cluster, running_cluster

TEMPERATURES = (0.0, 0.7, 1.0)


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=40)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--siblings", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name", default="tree_acceptance")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    prompts = [
        (category, chat_ids(tokenizer, text))
        for category, texts in spec_bench(arguments.per_category).items()
        for text in texts
    ]
    result = asyncio.run(run(arguments, prompts))
    print(save(arguments.name, result))


async def run(arguments: argparse.Namespace, prompts: list[tuple[str, list[int]]]) -> dict[str, Any]:
    """Every temperature with every number of siblings, none first."""
    runs: list[dict[str, Any]] = []
    replica = {"device": arguments.device, "kv_tokens": 32768, "max_batch_tokens": 1024}
    async with running_cluster(
        arguments.target, arguments.draft, verifier=replica, draft=replica, draft_timeout_s=60.0
    ) as cluster:
        for temperature in TEMPERATURES:
            expected: list[tuple[int, ...]] = []
            for siblings in (0, *arguments.siblings):
                completions = await measure(cluster, prompts, temperature, siblings, arguments)
                answers = [tuple(completion.token_ids) for completion in completions]
                expected = expected or answers
                runs.append(
                    {
                        "temperature": temperature,
                        "siblings": siblings,
                        "sibling_tokens": sum(each.speculation.sibling_tokens for each in completions),
                        "same_answers_as_with_chains": answers == expected,
                        "categories": table(counted(prompts, completions)),
                    }
                )
                total = runs[-1]["categories"]["all"]
                print(
                    f"T={temperature:g} siblings {siblings}  rate {total['rate']:.3f}  length {total['length']:.3f}"
                    f"  same answers: {answers == expected}",
                    flush=True,
                )
    return {
        "questions": len(prompts),
        "draft_tokens": arguments.draft_tokens,
        "max_tokens": arguments.max_tokens,
        "runs": runs,
    }


async def measure(
    cluster: Cluster,
    prompts: list[tuple[str, list[int]]],
    temperature: float,
    siblings: int,
    arguments: argparse.Namespace,
) -> list[Completion]:
    """All prompts, several at a time; the seed is the prompt's number."""
    generations = cluster.coordinator.generations
    mode = {"trees": TreeMode.ON if siblings else TreeMode.OFF, "max_siblings": siblings}
    generations._settings = generations._settings.model_copy(update=mode)
    places = asyncio.Semaphore(TOGETHER)

    async def answer(seed: int, prompt: list[int]) -> Completion:
        async with places:
            return await cluster.generate(
                prompt,
                drafter="model",
                temperature=temperature,
                seed=seed,
                max_tokens=arguments.max_tokens,
                max_draft_tokens=arguments.draft_tokens,
                fixed_length=True,
            )

    return await asyncio.gather(*(answer(seed, prompt) for seed, (_, prompt) in enumerate(prompts)))


def counted(prompts: list[tuple[str, list[int]]], completions: list[Completion]) -> dict[str, Acceptance]:
    """Rounds with a guess, by category."""
    found: dict[str, Acceptance] = {"all": Acceptance()}
    for (category, _), completion in zip(prompts, completions, strict=True):
        for name in ("all", category):
            row = found.setdefault(name, Acceptance())
            for of in completion.speculation.sources:
                row.rounds += of.rounds
                row.proposed += of.proposed_tokens
                row.accepted += of.accepted_tokens
    return found


if __name__ == "__main__":
    main()
