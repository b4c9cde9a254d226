"""What transformers' own generate costs a token, with the synthetic 8B model, for comparison: eager, and compiled.

    python -m tests.benchmarks.transformers_speed [--device cuda:0] [--prompt 512] [--tokens 64]

`compiled` is transformers' fastest documented way: a static cache, which makes `generate` compile the decoding steps in
the mode reduce-overhead, so with CUDA graphs. One cache serves all calls: another length would be compiled anew.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.utils
from transformers import StaticCache

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
    cache = StaticCache(config=module.config, max_cache_len=arguments.prompt + arguments.tokens + 1)
    result: dict[str, Any] = {"seed": 0, "options": {key: str(value) for key, value in vars(arguments).items()}}

    def generate(tokens: int, *, compiled: bool) -> float:
        options: dict[str, Any] = {}
        if compiled:
            cache.reset()
            options["past_key_values"] = cache
        started = time.perf_counter()
        module.generate(
            prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None,
            **options,
        )  # fmt: skip
        if prompt.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def a_token(*, compiled: bool) -> list[float]:
        """Milliseconds a token, without the prompt's share; what is not ready in the first two calls is not counted."""
        generate(8, compiled=compiled)
        generate(arguments.tokens, compiled=compiled)
        return [
            (generate(arguments.tokens, compiled=compiled) - generate(1, compiled=compiled))
            / (arguments.tokens - 1)
            * 1000
            for _ in range(5)
        ]

    with torch.inference_mode():
        for name in ("eager", "compiled"):
            started = time.perf_counter()
            result[f"{name}_ms"] = a_token(compiled=name == "compiled")
            result[f"{name}_took_s"] = time.perf_counter() - started
            # 0 where nothing was compiled.
            result[f"{name}_graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            print(name, result[f"{name}_ms"], f"in {result[f'{name}_took_s']:.0f} s", flush=True)
            save("transformers_speed", result, arguments.out)


if __name__ == "__main__":
    main()
