"""How long prompts take on the fused path: passes of many rows, with attention in tall tiles and in small ones.

    python -m tests.benchmarks.prompt_passes [--layers 32] [--out DIRECTORY]

The model has the shape of Llama-3.1-8B and random weights (bfloat16). Each pass runs with both kinds of tiles in turn,
and the logits of its last rows are compared bit by bit. Then whole prompts, in passes of 2,048 tokens, and beside them
transformers' own forward pass over the whole prompt at once, with torch's attention.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from outrider.engine.engine import Engine, Feed  # before torch: see outrider.engine

import torch  # isort: skip
from outrider.engine.options import EngineOptions
from outrider.engine.sequence import KvSequence
from tests.benchmarks.engine_step import text
from tests.benchmarks.record import RESULTS, save
from tests.benchmarks.synthetic_pair import loaded, synthetic_model

CASES = [
    (2048, 0, 0),
    (2048, 2048, 0),
    (2048, 6144, 0),
    (1024, 512, 0),
    (704, 2048, 0),
    (640, 2048, 0),
    (512, 8192, 0),
    (1500, 2048, 31),
]
"""Rows of a chunk, tokens before it, and sessions that decode a token each beside it, after 512 tokens."""

PROMPTS = [2048, 8192, 16000]
PASS = 2048
REPEATS = 7


def device_ms(work: Callable[[], Any]) -> list[float]:
    """Milliseconds on the device, `REPEATS` times after one that is not counted."""
    work()
    found = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return found


class Passes:
    """An engine, and passes that leave its sessions as they were."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.plans = engine._run._plans  # type: ignore[attr-defined]

    def both(self, work: Callable[[], torch.Tensor]) -> dict[str, Any]:
        """Milliseconds with tall tiles and without, and whether the logits are the same."""
        tall, logits = device_ms(work), work()
        with patch.object(self.plans, "_chunks", None):
            small, expected = device_ms(work), work()
        return {
            "ms": statistics.median(tall), "small_tiles_ms": statistics.median(small),
            "same_bits": torch.equal(logits, expected), "samples_ms": tall, "samples_small_tiles_ms": small,
        }  # fmt: skip

    def chunk(self, rows: int, context: int, beside: int) -> dict[str, Any]:
        """A pass over a chunk of a prompt, and other sessions' next tokens."""
        tokens = text(rows, 5)
        session = self.engine.open(text(1), context + rows + 80, salt="long")
        self._fill(session, context)
        others = [self.engine.open(text(1), 600, salt=f"other {i}") for i in range(beside)]
        for other in others:
            self._fill(other, 512)

        def work() -> torch.Tensor:
            feeds = [Feed(other, text(1, 7)) for other in others]
            logits = self.engine.forward([*feeds, Feed(session, tokens)])
            for sequence, more in [(session, rows), *((other, 1) for other in others)]:
                del sequence.cached[-more:]
            return logits

        found = {"rows": rows, "context": context, "beside": beside} | self.both(work)
        for sequence in [session, *others]:
            self.engine.close(sequence)
        return found

    def prompt(self, length: int) -> dict[str, Any]:
        """All passes over a prompt."""
        tokens = text(length, 3)
        session = self.engine.open(tokens[:1], length + 80, salt="prompt")

        def work() -> torch.Tensor:
            for start in range(0, length, PASS):
                part = tokens[start : start + PASS]
                logits = self.engine.forward([Feed(session, part, want_logits=start + PASS >= length)])
            session.cached.clear()
            return logits

        found = {"tokens": length} | self.both(work)
        self.engine.close(session)
        return found

    def _fill(self, sequence: KvSequence, context: int) -> None:
        tokens = text(context, seed=0)
        for start in range(0, context, PASS):
            self.engine.forward([Feed(sequence, tokens[start : start + PASS], want_logits=False)])


@torch.inference_mode()
def transformers_ms(module: Any, length: int) -> list[float]:
    """Milliseconds of transformers' forward pass, from which only the last position's logits are wanted."""
    ids = torch.tensor([text(length, 3)], device="cuda")
    return device_ms(lambda: module(ids, use_cache=True, logits_to_keep=1))


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    module = synthetic_model(arguments.layers, "cuda:0")
    module.config._attn_implementation = "sdpa"
    result: dict[str, Any] = {"passes": [], "prompts": [], "transformers": []}
    for length in PROMPTS:
        samples = transformers_ms(module, length)
        result["transformers"].append({"tokens": length, "ms": statistics.median(samples), "samples_ms": samples})
        print(f"transformers, prompt of {length}: {statistics.median(samples):.1f} ms", flush=True)
    options = EngineOptions(memory_fraction=0.5, max_batch_tokens=PASS, prefix_cache=False)
    passes = Passes(Engine(loaded(module, "cuda:0"), options))
    for case in CASES:
        found = passes.chunk(*case)
        result["passes"].append(found)
        print(f"{case}: {found['ms']:.2f} ms, small tiles {found['small_tiles_ms']:.2f}, same {found['same_bits']}")
    for length in PROMPTS:
        found = passes.prompt(length)
        result["prompts"].append(found)
        print(f"prompt of {length}: {found['ms']:.1f} ms, small tiles {found['small_tiles_ms']:.1f},"
              f" same {found['same_bits']}", flush=True)  # fmt: skip
    save("prompt_passes", result, arguments.out)


if __name__ == "__main__":
    main()
