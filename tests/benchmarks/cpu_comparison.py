"""Outrider beside what people use on a CPU, on the same SmolLM2 weights, one run, in turns.

    pip install xllamacpp
    python -m tests.benchmarks.cpu_comparison MODEL_DIRECTORY MODEL.gguf [--max-tokens 64] [--repeats 3]

Every system answers the same prompts greedily (the first question of every Spec-Bench category that is short enough),
one at a time, with the prompt's KV computed anew. A figure is output tokens over the whole time of a request, prompt
included. Systems take turns prompt by prompt, so a slow spell of the machine hits all of them. MODEL_DIRECTORY holds
MODEL.gguf dequantized to float32; llama.cpp runs the 4-bit file itself, so it reads an eighth of the bytes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, CompileConfig, GenerationConfig

from outrider.client import Client
from outrider_cli.cluster import LocalCluster
from tests.benchmarks.prompts import chat_ids, spec_bench
from tests.benchmarks.record import save

LONGEST_PROMPT = 200
GUESS = 4

Answer = Callable[[list[int]], list[int] | int]
"""Answers a prompt: the output ids, or only how many there were."""


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=13, help="how many categories")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--draft-layers", type=int, default=6)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    all_prompts = {
        name: ids for name, (text,) in spec_bench(1).items() if len(ids := chat_ids(tokenizer, text)) <= LONGEST_PROMPT
    }
    prompts = dict(list(all_prompts.items())[: arguments.prompts])
    flags = ["--no-prefix-cache", "--kv-tokens", "8192"]
    with (
        LocalCluster(
            str(arguments.model), draft_layers=arguments.draft_layers, verifier_flags=flags, draft_flags=flags
        ) as cluster,
        Client(cluster.address) as client,
    ):
        systems = {
            **outrider_systems(client, arguments.max_tokens),
            **transformers_systems(arguments.model, arguments.max_tokens, arguments.draft_layers),
            "llama.cpp, 4-bit weights": llama_cpp(arguments.gguf, arguments.max_tokens),
        }
        result = run(systems, prompts, arguments.repeats)
    result |= {"seed": 0, "max_tokens": arguments.max_tokens, "draft_layers": arguments.draft_layers, "guess": GUESS}
    print(save("cpu_comparison", result))
    for name, row in result["systems"].items():
        print(f"{name:45} {row['tokens_per_second']:7.2f} tok/s  same as transformers: {row['identical']}")


def run(systems: dict[str, Answer], prompts: dict[str, list[int]], repeats: int) -> dict[str, Any]:
    """Warm everything up on two prompts (torch.compile wants to see a second shape), then measure in turns."""
    for name, answer in systems.items():
        started = time.perf_counter()
        for prompt in list(prompts.values())[:2]:
            answer(prompt)
        print(f"warm-up of {name}: {time.perf_counter() - started:.1f} s", flush=True)
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    for repeat in range(repeats):
        for category, prompt in prompts.items():
            for name, answer in systems.items():
                started = time.perf_counter()
                ids = answer(prompt)
                seconds = time.perf_counter() - started
                samples[name].append(
                    {
                        "repeat": repeat,
                        "category": category,
                        "tokens": ids if isinstance(ids, int) else len(ids),
                        "seconds": seconds,
                        "ids": ids,
                    }
                )
            print(f"{repeat} {category}", flush=True)
    reference = {row["category"]: row["ids"] for row in samples["transformers, eager"] if row["repeat"] == 0}
    report = {}
    for name, rows in samples.items():
        same = sum(row["ids"] == reference[row["category"]] for row in rows)
        rate = statistics.median(row["tokens"] / row["seconds"] for row in rows)
        slim = [{key: value for key, value in row.items() if key != "ids"} for row in rows]
        report[name] = {"tokens_per_second": rate, "identical": f"{same} of {len(rows)}", "samples": slim}
    return {"prompts": {name: len(ids) for name, ids in prompts.items()}, "systems": report}


def outrider_systems(client: Client, max_tokens: int) -> dict[str, Answer]:
    """Plain decoding, n-gram and model drafts, over gRPC with real processes."""

    def answer_with(drafter: str) -> Answer:
        def answer(prompt: list[int]) -> list[int]:
            options: dict[str, Any] = {"temperature": 0, "max_tokens": max_tokens, "max_draft_tokens": GUESS}
            options["fixed_length"] = drafter != "none"
            return list(client.generate(token_ids=prompt, drafter=drafter, **options).token_ids)  # type: ignore[arg-type]

        return answer

    names = {"none": "Outrider, plain", "ngram": "Outrider, n-gram", "model": "Outrider, first layers as draft"}
    return {name: answer_with(drafter) for drafter, name in names.items()}


def transformers_systems(directory: Path, max_tokens: int, draft_layers: int) -> dict[str, Answer]:
    """`generate`: eager, compiled with a static cache, assisted by the same draft, prompt lookup."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    draft = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    draft.model.layers = draft.model.layers[:draft_layers]
    draft.config.num_hidden_layers = draft_layers
    draft.generation_config.num_assistant_tokens = GUESS
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    compiled = CompileConfig()
    compiled._compile_all_devices = True  # transformers compiles by itself on accelerators only
    common = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, pad_token_id=2, eos_token_id=2)

    def answer_with(**options: Any) -> Answer:
        @torch.inference_mode()
        def answer(prompt: list[int]) -> list[int]:
            ids = torch.tensor([prompt])
            output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=common, **options)
            return list(output[0, len(prompt) :].tolist())

        return answer

    return {
        "transformers, eager": answer_with(),
        "transformers, static cache and compile": answer_with(cache_implementation="static", compile_config=compiled),
        "transformers, assisted by the same draft": answer_with(assistant_model=draft),
        "transformers, prompt lookup": answer_with(prompt_lookup_num_tokens=GUESS),
    }


def llama_cpp(gguf: Path, max_tokens: int) -> Answer:
    """llama.cpp's server inside this process."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf)
    parameters.n_ctx = 2048
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = torch.get_num_threads()
    parameters.cpuparams_batch.n_threads = torch.get_num_threads()
    server = xllamacpp.Server(parameters)

    def answer(prompt: list[int]) -> int:
        request = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "cache_prompt": False}
        return int(server.handle_completions(request)["usage"]["completion_tokens"])

    return answer


if __name__ == "__main__":
    main()
