"""What one forward pass of 1 to 8 rows costs on a CPU, before and after our linear layers, attention and Llama decoder.

    python -m tests.benchmarks.cpu_forward MODEL_DIRECTORY [--repeats 15] [--threads 2]

MODEL_DIRECTORY holds a Llama-like model of the size of SmolLM2-135M; it runs in float32. Three ways of running it take
turns of ten passes, so that a slow spell of the machine hits all of them: transformers by itself (SDPA attention and
its own cache), our engine around transformers' unchanged modules, and our engine as it is. Then the forms of a linear
layer that were tried take turns over matrices of the model's shapes. What several rows cost beside one is measured by
itself: passes of 1, 2 and 4 rows in turn, and the median of the ratios of neighbours, which a slow spell of the machine
leaves alone. Every sample is recorded, in milliseconds.

The figures want a machine that does nothing else: run with `chrt -r 5` where other processes share the cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from outrider.engine.engine import Engine, Feed  # before torch: see outrider.engine

import torch  # isort: skip
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache

from outrider.acceptance.tree import TokenTree
from outrider.engine.linear import PackedLinear
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from tests.benchmarks.record import save

SEED = 0
ROWS = (1, 2, 4, 5, 8)
IN_TURN = (1, 2, 4)
CONTEXTS = (64, 1024)
GREEDY_TOKENS = 64

Forward = Callable[[list[int], int], Tensor]
"""Runs tokens over a context of the given length; returns their logits and leaves the context as it was."""


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(SEED)
    text = torch.randint(100, 40_000, (max(CONTEXTS) + max(ROWS),), generator=generator).tolist()
    with torch.inference_mode():
        systems = {
            "transformers": transformers_forward(arguments.model, text),
            "engine, transformers' modules": engine_forward(arguments.model, text, plain=True),
            "engine": engine_forward(arguments.model, text, plain=False),
        }
        result = {
            "seed": SEED,
            "repeats": arguments.repeats,
            "greedy_output_identical": len({tuple(greedy(forward, text)) for forward in systems.values()}) == 1,
            "rows_equal_alone_and_among_others": rows_alike(systems["engine"], text),
            "forward_ms": measure_forwards(systems, text, arguments.repeats),
            "linear_layers_ms": measure_linears(arguments.model, arguments.repeats),
            "in_turn_ms": measure_in_turn(systems["engine"], text, 16 * arguments.repeats),
        }
    print(save("cpu_forward", result))
    report(result)


def transformers_forward(directory: Path, text: list[int]) -> Forward:
    """transformers' model with its own cache, cropped after every pass."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa").eval()
    caches = {}
    for context in CONTEXTS:
        caches[context] = DynamicCache(config=model.config)
        model(torch.tensor([text[:context]]), past_key_values=caches[context], logits_to_keep=1)

    def forward(tokens: list[int], context: int) -> Tensor:
        logits = model(torch.tensor([tokens]), past_key_values=caches[context]).logits[0]
        caches[context].crop(-len(tokens))
        return logits

    return forward


def engine_forward(directory: Path, text: list[int], *, plain: bool) -> Forward:
    """Our engine; `plain` keeps transformers' modules and their linear layers."""
    with patch("outrider.engine.decoder.can_pack", return_value=False) if plain else patch.dict({}):
        loaded = load_model(ModelOptions(str(directory), dtype="float32", device="cpu"))
        engine = Engine(loaded, EngineOptions(kv_tokens=4096, prefix_cache=False))
    sequences = {}
    for context in CONTEXTS:
        sequences[context] = engine.open(text[:context], context + GREEDY_TOKENS + 1)
        engine.forward([Feed(sequences[context], text[:context], want_logits=False)])

    def forward(tokens: list[int], context: int) -> Tensor:
        sequence = sequences[context]
        logits = engine.forward([Feed(sequence, tokens[:1], TokenTree.chain(tokens[1:]))])
        sequence.align([*text[:context], 0], context)
        return logits

    return forward


def greedy(forward: Forward, text: list[int]) -> list[int]:
    """The likeliest continuation of the shortest context; feeds all of it anew for every token."""
    output = [text[CONTEXTS[0]]]
    while len(output) < GREEDY_TOKENS:
        output.append(int(forward(output, CONTEXTS[0])[-1].argmax()))
    return output


def rows_alike(forward: Forward, text: list[int]) -> dict[str, str]:
    """How many rows have the same bits when their predecessors run with them as when these ran before."""
    counts = {}
    for context in CONTEXTS:
        alone = forward(text[context : context + 1], context)[0]
        pairs = [(alone, forward(text[context : context + rows], context)[0]) for rows in ROWS[1:]]
        whole = forward(text[context : context + max(ROWS)], context)
        pairs += [(whole[:rows], forward(text[context : context + rows], context)) for rows in ROWS]
        counts[str(context)] = f"{sum(torch.equal(*pair) for pair in pairs)} of {len(pairs)} comparisons"
    return counts


def measure_forwards(systems: dict[str, Forward], text: list[int], repeats: int) -> dict[str, Any]:
    """[system][context][rows] -> milliseconds of every pass."""
    samples: dict[str, Any] = {name: {c: {rows: [] for rows in ROWS} for c in CONTEXTS} for name in systems}
    for repeat in range(repeats + 1):
        for name, forward in systems.items():
            forward(text[: max(ROWS)], CONTEXTS[-1])  # the others have emptied the processor's caches
            for context in CONTEXTS:
                for rows in ROWS:
                    milliseconds = timed(lambda f=forward, c=context, r=rows: f(text[c : c + r], c))
                    if repeat:  # the first turn warms up
                        samples[name][context][rows].append(milliseconds)
    return samples


def measure_in_turn(forward: Forward, text: list[int], turns: int) -> dict[int, list[float]]:
    """[rows] -> milliseconds of every pass of the shortest context, one number of rows after the other."""
    context = CONTEXTS[0]
    samples: dict[int, list[float]] = {rows: [] for rows in IN_TURN}
    for _ in range(turns):
        for rows, found in samples.items():
            found.append(timed(lambda r=rows: forward(text[context : context + r], context)))
    return samples


def measure_linears(directory: Path, repeats: int) -> dict[str, Any]:
    """[form][rows] -> milliseconds of one pass over all linear layers of the model, with nothing between them."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    weights = [layer.weight.detach() for layer in layers]
    forms = {name: [make(weight) for weight in weights] for name, make in linear_forms().items()}
    forms["oneDNN packed, siblings fused"] = [PackedLinear(weight, None) for weight in fused_weights(model)]
    inputs = {(w.shape[1], rows): torch.randn(rows, w.shape[1]) for w in weights for rows in ROWS}
    samples: dict[str, Any] = {name: {rows: [] for rows in ROWS} for name in forms}
    sizes = {name: [w.shape[1] for w in weights] for name in forms}
    sizes["oneDNN packed, siblings fused"] = [weight.shape[1] for weight in fused_weights(model)]
    for repeat in range(repeats + 1):
        for rows in ROWS:
            for name, functions in forms.items():
                calls = [(f, inputs[size, rows]) for f, size in zip(functions, sizes[name], strict=True)]
                milliseconds = timed(lambda calls=calls: [f(x) for f, x in calls])
                if repeat:
                    samples[name][rows].append(milliseconds)
    return samples


def linear_forms() -> dict[str, Callable[[Tensor], Callable[[Tensor], Tensor]]]:
    """The forms that were tried: each makes a function of x out of a weight W."""

    def transposed(weight: Tensor) -> Callable[[Tensor], Tensor]:
        stored = weight.t().contiguous()
        return lambda x: x @ stored

    return {
        "linear(x, W)": lambda weight: lambda x: nn.functional.linear(x, weight),
        "(W @ x.T).T": lambda weight: lambda x: (weight @ x.t()).t(),
        "x @ V, V = W.T stored": transposed,
        "oneDNN packed": lambda weight: PackedLinear(weight, None),
    }


def fused_weights(model: Any) -> Iterator[Tensor]:
    """The matrices that remain when query, key and value, and gate and up, are one each."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        yield torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        yield attention.o_proj.weight.detach()
        yield torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        yield mlp.down_proj.weight.detach()
    yield model.lm_head.weight.detach()


def timed(call: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def report(result: dict[str, Any]) -> None:
    """Medians and minima, for people."""
    for name, contexts in result["forward_ms"].items():
        for context, samples in contexts.items():
            print(f"{name:32} context {context:5}", *(_cell(rows, ms) for rows, ms in samples.items()))
    for name, samples in result["linear_layers_ms"].items():
        print(f"{name:46}", *(_cell(rows, ms) for rows, ms in samples.items()))
    one, *others = result["in_turn_ms"].items()
    print("in turn", _cell(*one), *(_cell(rows, ms) + f" x{_paired(ms, one[1]):.3f}" for rows, ms in others))
    print("greedy output identical:", result["greedy_output_identical"])
    print("rows equal to the last bit:", result["rows_equal_alone_and_among_others"])


def _paired(samples: list[float], others: list[float]) -> float:
    return statistics.median(ours / theirs for ours, theirs in zip(samples, others, strict=True))


def _cell(rows: int, samples: list[float]) -> str:
    return f" {rows} rows {statistics.median(samples):6.1f} (min {min(samples):6.1f})"


if __name__ == "__main__":
    main()
