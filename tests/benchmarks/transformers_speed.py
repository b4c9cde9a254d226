"""What transformers' own generate costs a token, with the synthetic 8B model, for comparison: eager, and compiled.

    python -m tests.benchmarks.transformers_speed [--device cuda:0] [--prompt 512] [--tokens 64]

`compiled` is transformers' fastest documented way: a static cache and torch.compile in the mode reduce-overhead, which
records CUDA graphs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.record import RESULTS, save
from tests.benchmarks.synthetic_pair import SHAPES, synthetic_model


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    module = synthetic_model(shape["num_hidden_layers"], arguments.device, shape=shape)
    module.set_attn_implementation("sdpa")
    prompt = torch.randint(0, 900, (1, arguments.prompt), device=arguments.device)
    result: dict[str, Any] = {"seed": 0, "options": {key: str(value) for key, value in vars(arguments).items()}}

    def generate(tokens: int, **options: Any) -> float:
        started = time.perf_counter()
        module.generate(
            prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None,
            **options,
        )  # fmt: skip
        if prompt.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def a_token(**options: Any) -> list[float]:
        """Milliseconds a token, without the prompt's share."""
        generate(8, **options)
        return [
            (generate(arguments.tokens, **options) - generate(1, **options)) / (arguments.tokens - 1) * 1000
            for _ in range(3)
        ]

    with torch.inference_mode():
        result["eager_ms"] = a_token()
        print("eager", result["eager_ms"], flush=True)
        save("transformers_speed", result, arguments.out)
        module.forward = torch.compile(module.forward, mode="reduce-overhead", fullgraph=True)
        started = time.perf_counter()
        result["compiled_ms"] = a_token(cache_implementation="static")
        result["compile_s"] = time.perf_counter() - started
        print("compiled", result["compiled_ms"], f"ready after {result['compile_s']:.0f} s", flush=True)
    save("transformers_speed", result, arguments.out)


if __name__ == "__main__":
    main()
