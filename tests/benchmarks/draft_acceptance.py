"""Acceptance rate and accepted length of a draft by Spec-Bench category, temperature and acceptance rule.

    python -m tests.benchmarks.draft_acceptance TARGET UNTRAINED DISTILLED [--per-category 5] [--device cuda]

The real services in one process, over gRPC; every round proposes K tokens. "argmax" is the draft's likeliest token
against the target's sampled answers, worked out from the answers of the match runs.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import outrider.engine.engine  # noqa: F401  (before torch)

import torch  # isort: skip
from transformers import AutoTokenizer

from outrider.corpus import Answer
from outrider.distill.evaluate import Acceptance, matching
from outrider.engine.model import load_model
from outrider.engine.options import ModelOptions
from tests.benchmarks.prompts import chat_ids, spec_bench
from tests.benchmarks.record import save
from tests.cluster import Cluster, running_cluster

DRAFTS = ("untrained", "distilled")
RULES = ("match", "rejection", "block")
TEMPERATURES = (0.0, 0.7, 1.0)
TOGETHER = 16


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("untrained", type=Path)
    parser.add_argument("distilled", type=Path)
    parser.add_argument("--per-category", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=DRAFTS, action="append", help="leave the other draft out")
    parser.add_argument("--name", default="draft_acceptance")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    prompts = [
        (category, chat_ids(tokenizer, text))
        for category, texts in spec_bench(arguments.per_category).items()
        for text in texts
    ]
    result = asyncio.run(run(arguments, prompts))
    print(save(arguments.name, result))
    for row in result["runs"]:
        total = row["categories"]["all"]
        print(
            f"{row['draft']:10} {row['rule']:10} T={row['temperature']:g}"
            f"  rate {total['rate']:.3f}  length {total['length']:.2f}"
        )


async def run(arguments: argparse.Namespace, prompts: list[tuple[str, list[int]]]) -> dict[str, Any]:
    """Every draft with every temperature and rule."""
    runs: list[dict[str, Any]] = []
    replica = {"device": arguments.device, "kv_tokens": 32768, "max_batch_tokens": 1024}
    for name in arguments.only or DRAFTS:
        directory: Path = getattr(arguments, name)
        async with running_cluster(
            arguments.target, directory, verifier=replica, draft=replica, draft_timeout_s=30.0
        ) as cluster:
            for temperature in TEMPERATURES:
                for rule in RULES if temperature else RULES[:1]:
                    runs.append({"draft": name, **await measure(cluster, prompts, temperature, rule, arguments)})
                    print(
                        {key: value for key, value in runs[-1].items() if key not in ("categories", "answers")},
                        flush=True,
                    )
                    if rule == "match" and temperature:
                        runs.append(
                            {"draft": name, **argmax(directory, runs[-1].pop("answers"), temperature, arguments)}
                        )
                    runs[-1].pop("answers", None)
    for row in runs:
        row.pop("answers", None)
    return {"seed": 0, "draft_tokens": arguments.draft_tokens, "max_tokens": arguments.max_tokens, "runs": runs}


async def measure(
    cluster: Cluster, prompts: list[tuple[str, list[int]]], temperature: float, rule: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """All prompts, several at a time."""
    places = asyncio.Semaphore(TOGETHER)
    started = time.perf_counter()

    async def answer(seed: int, prompt: list[int]) -> Any:
        async with places:
            return await cluster.generate(
                prompt,
                drafter="model",
                rule=rule,
                temperature=temperature,
                seed=seed,
                max_tokens=arguments.max_tokens,
                max_draft_tokens=arguments.draft_tokens,
                fixed_length=True,
            )

    completions = await asyncio.gather(*(answer(seed, prompt) for seed, (_, prompt) in enumerate(prompts)))
    found: dict[str, Acceptance] = defaultdict(Acceptance)
    for (category, _), completion in zip(prompts, completions, strict=True):
        for name in ("all", category):
            for of in completion.speculation.sources:  # rounds without a guess say nothing of the draft
                found[name].rounds += of.rounds
                found[name].proposed += of.proposed_tokens
                found[name].accepted += of.accepted_tokens
    answers = [
        Answer(str(seed), category, tuple(prompt), tuple(completion.token_ids), temperature, seed)
        for seed, ((category, prompt), completion) in enumerate(zip(prompts, completions, strict=True))
    ]
    seconds = time.perf_counter() - started
    return {
        "rule": rule,
        "temperature": temperature,
        "seconds": seconds,
        "categories": table(found),
        "answers": answers,
    }


def argmax(directory: Path, answers: list[Answer], temperature: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """The draft's likeliest tokens against the target's sampled ones."""
    loaded = load_model(ModelOptions(str(directory), dtype="float32", device=arguments.device))
    found: dict[str, Acceptance] = defaultdict(Acceptance)
    for answer in answers:
        greedy = Answer(answer.key, answer.category, answer.prompt, answer.answer, 0.0, answer.seed)
        matches = matching(loaded.module, loaded.draft_vocabulary, [greedy])[0]
        for name in ("all", answer.category):
            found[name].add(matches, arguments.draft_tokens)
    del loaded
    torch.cuda.empty_cache()
    return {"rule": "argmax", "temperature": temperature, "categories": table(found)}


def table(found: dict[str, Acceptance]) -> dict[str, Any]:
    """As JSON."""
    return {
        name: {
            "rounds": row.rounds,
            "proposed": row.proposed,
            "accepted": row.accepted,
            "rate": row.rate,
            "length": row.length,
        }
        for name, row in found.items()
    }


if __name__ == "__main__":
    main()
