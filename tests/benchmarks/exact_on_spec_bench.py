"""Greedy answers to Spec-Bench questions, token for token against transformers, with every drafter, alone and together.

    python -m tests.benchmarks.exact_on_spec_bench MODEL_DIRECTORY [--per-category 5] [--max-tokens 64]

MODEL_DIRECTORY is SmolLM2-135M-Instruct (`outrider_cli.weights.demo_model_directory`). Float32. The noisy draft is a
model of the same vocabulary with random weights. A difference is looked into: the target's two best logits at the
first different token, from transformers, are recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.benchmarks.prompts import chat_ids, spec_bench
from tests.benchmarks.record import save
from tests.cluster import Cluster, running_cluster
from tests.reference import greedy, load_reference

CONCURRENT = 8
ATTENTION = "sdpa"  # transformers' default, and much faster than its eager attention over long prompts
DRAFTS = ["none", "ngram", "layers", "noise"]


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--per-category", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--draft-layers", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--together", nargs="+", type=int, default=[1, CONCURRENT], help="requests at a time")
    parser.add_argument("--drafts", nargs="+", default=DRAFTS, choices=DRAFTS, help="what guesses")
    arguments = parser.parse_args()
    result = asyncio.run(run(arguments))
    path = save("_".join(["exact_on_spec_bench", arguments.device, *arguments.drafts]), result)
    print(path)
    for row in result["runs"]:
        print({key: value for key, value in row.items() if key != "differences"}, len(row["differences"]), "differ")
    sys.exit(any(row["differences"] for row in result["runs"]))


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The reference, then every drafter, alone and eight at a time."""
    model, tokenizer = load_reference(arguments.model, ATTENTION)
    questions = [text for texts in spec_bench(arguments.per_category).values() for text in texts]
    prompts = [chat_ids(tokenizer, text) for text in questions]
    started = time.perf_counter()
    expected = [greedy(arguments.model, prompt, arguments.max_tokens, attention=ATTENTION) for prompt in prompts]
    print(f"reference: {len(prompts)} answers in {time.perf_counter() - started:.0f} s", flush=True)
    runs: list[dict[str, Any]] = []
    replica = {"device": arguments.device, "kv_tokens": 32768, "max_batch_tokens": 512}
    with tempfile.TemporaryDirectory() as noise:
        save_noise(arguments.model, Path(noise))
        drafts = {"layers": (arguments.model, {"layers": arguments.draft_layers}), "noise": (Path(noise), {})}
        for name in arguments.drafts:
            draft, settings = drafts.get(name, drafts["noise"])
            async with running_cluster(
                arguments.model, draft, verifier=replica, draft=replica | settings, draft_timeout_s=30.0
            ) as cluster:
                for together in arguments.together:
                    drafter = "model" if name in drafts else name
                    row = await answer_all(cluster, prompts, expected, drafter, together, arguments.max_tokens)
                    runs.append({"draft": name, **row})
                    print({k: v for k, v in runs[-1].items() if k != "differences"}, flush=True)
    for row in runs:
        for difference in row["differences"]:
            difference |= explain(model, prompts[difference["question"]], expected[difference["question"]], difference)
    return {
        "seed": 0,
        "questions": len(prompts),
        "max_tokens": arguments.max_tokens,
        "dtype": "float32",
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "runs": runs,
    }


async def answer_all(
    cluster: Cluster, prompts: list[list[int]], expected: list[list[int]], drafter: str, together: int, max_tokens: int
) -> dict[str, Any]:
    """All answers with one drafter, `together` at a time."""
    places = asyncio.Semaphore(together)
    started = time.perf_counter()

    async def answer(prompt: list[int]) -> Any:
        async with places:
            return await cluster.generate(
                prompt, drafter=drafter, temperature=0, max_tokens=max_tokens, fixed_length=True
            )

    answers = await asyncio.gather(*(answer(prompt) for prompt in prompts))
    proposed = sum(a.speculation.proposed_tokens for a in answers)
    accepted = sum(a.speculation.accepted_tokens for a in answers)
    return {
        "drafter": drafter,
        "together": together,
        "identical": sum(list(a.token_ids) == wanted for a, wanted in zip(answers, expected, strict=True)),
        "proposed": proposed,
        "acceptance_rate": accepted / proposed if proposed else None,
        "seconds": time.perf_counter() - started,
        "differences": [
            {"question": index, "ours": list(a.token_ids)}
            for index, (a, wanted) in enumerate(zip(answers, expected, strict=True))
            if list(a.token_ids) != wanted
        ],
    }


def explain(model: Any, prompt: list[int], expected: list[int], difference: dict[str, Any]) -> dict[str, Any]:
    """Where the answers part, and how close the target's best two logits are there."""
    ours = difference["ours"]
    place = next(
        (i for i, (a, b) in enumerate(zip(ours, expected, strict=False)) if a != b), min(map(len, (ours, expected)))
    )
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + expected[:place]], device=model.device)).logits[0, -1]
    best = logits.topk(2)
    return {"first_difference": place, "best_ids": best.indices.tolist(), "best_logits": best.values.tolist()}


def save_noise(target: Path, directory: Path) -> None:
    """A two-layer model of the target's shape and vocabulary with random weights."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(target)
    config.num_hidden_layers = 2
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    AutoTokenizer.from_pretrained(target).save_pretrained(directory)


if __name__ == "__main__":
    main()
