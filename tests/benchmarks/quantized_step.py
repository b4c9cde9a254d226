"""What weights of 8 and 4 bits take and cost on a GPU, and how often they choose what the full ones choose.

    python -m tests.benchmarks.quantized_step [--device cuda:0] [--model DIRECTORY] [--out DIRECTORY]

Once for the synthetic model in the shape of Llama-3.1-8B, and for a real model if a directory is given. Quantized
weights run on the general path, so full ones are measured on that too, and at the end on the fused one. Of each:

- `gpu_bytes`, by how much the allocator's count grew; `weight_bytes`, the tensors that hold the weights;
  `reckoned_bytes`, what `outrider.engine.quantize.weight_bytes` says before anything is loaded;
- `steps`: `wall_ms` of `Engine.forward` for 1, 4 and 16 rows of one session after 512 tokens until the logits are
  there, `device_ms` from the first kernel to the end of the last (with the gaps between them), and `kernels_ms`, the
  kernels alone; `floor_ms` is reading the weights once at the rate measured in the same run;
- `texts`: the same tokens as with full weights on the general path at every position, each seen with the same tokens
  before it: `same` is the share of equal likeliest tokens, `overlap` the mean of sum(min(p, q)) at temperature 1, with
  which a token drawn from a quantized draft is accepted by its own target, `off_by` the root mean square difference of
  the logits in units of their standard deviation, `run_of_5` how many of 5 greedy guesses would be accepted. What the
  fused path has there is what rounding alone changes.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider.engine.engine import Engine, Feed  # before torch: see outrider.engine

import torch  # isort: skip
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from outrider.acceptance.tree import TokenTree
from outrider.engine.model import LoadedModel, load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.quantize import NAMES, NONE, check_quantization, quantize, weight_bytes
from outrider.engine.sequence import NO_TREE, KvSequence
from outrider.errors import ModelLoadError
from tests.benchmarks.agreement import PROMPTS, PROSE, Text, compared, continued, guesses
from tests.benchmarks.prompts import chat_ids
from tests.benchmarks.record import RESULTS, save
from tests.benchmarks.synthetic_pair import SHAPES, loaded, synthetic_model

ROWS = (1, 4, 16)
CONTEXT = 512
REPEATS = 12
PROFILED = 3
OWN = "own greedy text"
MADE = 64  # tokens that the full model goes on with after each prompt
SEED = 3
KNOWN = 900  # ids below this are in the vocabulary of every shape


@dataclasses.dataclass
class Subject:
    """A model to be measured with every kind of weights."""

    load: Callable[[str], LoadedModel]  # by the kind of its weights
    reckon: Callable[[str], int]
    texts: list[Text]
    prompts: list[list[int]]
    result: dict[str, Any]
    expected: dict[str, list[Tensor]] = dataclasses.field(default_factory=dict)  # float32 [positions, W] on the host


def random_ids(length: int, seed: int = SEED) -> list[int]:
    """Random token ids."""
    return torch.randint(0, KNOWN, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def synthetic(name: str, device: torch.device) -> Subject:
    """Random weights in a shape of `synthetic_pair`."""
    shape = SHAPES[name]

    def load(quantization: str) -> LoadedModel:
        check_quantization(quantization, torch.bfloat16, device)
        module = synthetic_model(shape["num_hidden_layers"], str(device), shape=shape)
        if quantization != NONE:
            quantize(module, quantization, device)
        return dataclasses.replace(loaded(module, str(device)), quantization=quantization)

    config = LlamaConfig(**shape)
    texts = [Text("random", random_ids(120), 1)]
    return Subject(load, lambda quantization: reckoned(config, quantization), texts, [], {"model": f"synthetic {name}"})


def real(directory: Path, device: torch.device) -> Subject:
    """A checkpoint, loaded as a service loads it."""

    def load(quantization: str) -> LoadedModel:
        return load_model(ModelOptions(str(directory), "bfloat16", str(device), quantization=quantization))

    config = AutoConfig.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompts = [
        chat_ids(tokenizer, prompt) if tokenizer.chat_template else list(tokenizer(prompt)["input_ids"])
        for prompt in PROMPTS
    ]
    texts = [Text("prose", list(tokenizer(PROSE)["input_ids"]), 1)]
    return Subject(load, lambda quantization: reckoned(config, quantization), texts, prompts, {"model": directory.name})


def reckoned(config: Any, quantization: str) -> int:
    """Bytes of the weights, told from shapes alone."""
    with torch.device("meta"):
        return weight_bytes(AutoModelForCausalLM.from_config(config), quantization, torch.bfloat16)


def held_bytes(module: Any) -> tuple[int, int]:
    """Bytes of the tensors that hold the weights, and those of them that a pass reads in full."""
    sizes = {}
    for name, parameter in module.named_parameters():
        inner = parameter.__tensor_flatten__()[0] if hasattr(parameter, "__tensor_flatten__") else []
        parts = [getattr(parameter, part) for part in inner] or [parameter]
        sizes[name] = sum(part.numel() * part.itemsize for part in parts)
    tied = module.get_input_embeddings().weight is module.get_output_embeddings().weight
    looked_up = 0 if tied else sum(size for name, size in sizes.items() if "embed" in name)
    return sum(sizes.values()), sum(sizes.values()) - looked_up


def allocated(device: torch.device) -> int:
    """Bytes that tensors take on the GPU; 0 on a CPU, where nobody counts them."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device)


def step(engine: Engine, sequence: KvSequence, rows: int) -> None:
    """A token and a proposal that is then dropped; returns when the logits are there."""
    tree = TokenTree.chain(random_ids(rows - 1, 8)) if rows > 1 else NO_TREE
    engine.forward([Feed(sequence, random_ids(1, 7), tree)])
    sequence.tree = NO_TREE
    del sequence.cached[-1:]


def measure(engine: Engine, sequence: KvSequence, rows: int) -> dict[str, Any]:
    """Milliseconds of a step."""
    on_gpu = engine.device.type == "cuda"
    for _ in range(2):
        step(engine, sequence, rows)
    wall, device = [], []
    for _ in range(REPEATS):
        if not on_gpu:
            started = time.perf_counter()
            step(engine, sequence, rows)
            wall.append((time.perf_counter() - started) * 1000)
            continue
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        started = time.perf_counter()
        begin.record()
        step(engine, sequence, rows)
        end.record()
        torch.cuda.synchronize()
        wall.append((time.perf_counter() - started) * 1000)
        device.append(begin.elapsed_time(end))
    found: dict[str, Any] = {"rows": rows, "wall_ms": statistics.median(wall), "samples_wall_ms": wall}
    return found | ({"device_ms": statistics.median(device)} if on_gpu else {})


def kernels(engine: Engine, sequence: KvSequence, rows: int) -> dict[str, Any]:
    """Milliseconds that the GPU works in a step, and the kernels that take most of them."""
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED):
            step(engine, sequence, rows)
        torch.cuda.synchronize()
    events = [event for event in found.key_averages() if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: -event.self_device_time_total)
    return {
        "kernels_ms": sum(event.self_device_time_total for event in events) / PROFILED / 1000,
        "most": [
            {"kernel": event.key[:70], "us": event.self_device_time_total / PROFILED, "calls": event.count / PROFILED}
            for event in events[:4]
        ],
    }


def run(
    subject: Subject, quantization: str, device: torch.device, fused: bool, rate: float, keep: Callable[[], Any]
) -> None:
    """Measure one kind of weights; `keep` saves what is there so far."""
    found: dict[str, Any] = {"weights": quantization, "path": "fused" if fused else "general"}
    subject.result.setdefault("measured", []).append(found)
    before, started = allocated(device), time.perf_counter()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model = subject.load(quantization)
    found["load_s"] = time.perf_counter() - started
    if device.type == "cuda":
        found["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(device) - before
        found["gpu_bytes"] = allocated(device) - before
    found["weight_bytes"], read = held_bytes(model.module)
    found["reckoned_bytes"] = subject.reckon(quantization)
    if rate:
        found["floor_ms"] = read / rate * 1000
    keep()
    started = time.perf_counter()
    engine = Engine(model, EngineOptions(kv_tokens=8192, fused=fused))
    found["engine_s"] = time.perf_counter() - started
    tokens = random_ids(CONTEXT)
    sequence = engine.open(tokens, CONTEXT + 80)
    engine.forward([Feed(sequence, tokens, want_logits=False)])
    found["steps"] = []
    for rows in ROWS:
        found["steps"].append(measure(engine, sequence, rows))
        keep()
    if subject.prompts and not any(text.name == OWN for text in subject.texts):
        subject.texts += continued(engine, OWN, subject.prompts, MADE)
    found["texts"] = {}
    for name in dict.fromkeys(text.name for text in subject.texts):
        logits = [guesses(engine, text) for text in subject.texts if text.name == name]
        found["texts"][name] = compared(subject.expected.setdefault(name, logits), logits)
    keep()
    if device.type == "cuda":
        for part in found["steps"]:
            part |= kernels(engine, sequence, part["rows"])
    show(found)
    keep()


def show(found: dict[str, Any]) -> None:
    """A line for the weights, one for the steps, one for each text."""
    taken = found.get("gpu_bytes", found["weight_bytes"])
    print(
        f"  {found['weights']}, {found['path']} path: {taken / 1e6:.1f} MB,"
        f" reckoned {found['reckoned_bytes'] / 1e6:.1f},"
        f" floor {found.get('floor_ms', 0):.2f} ms; loaded in {found['load_s']:.1f} s,"
        f" ready {found['engine_s']:.1f} later"
    )
    for part in found["steps"]:
        more = "".join(f", {name} {part[name + '_ms']:.2f}" for name in ("device", "kernels") if name + "_ms" in part)
        print(f"    {part['rows']:2} rows: {part['wall_ms']:.2f} ms{more}")
    for name, text in found["texts"].items():
        print(f"    {name}:", ", ".join(f"{key} {value:.4g}" for key, value in text.items()), flush=True)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--model", type=Path, help="directory of a real model, such as SmolLM2-135M")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rate = 0.0
    if device.type == "cuda":
        from tests.benchmarks.matrix_products import read_rate

        torch.cuda.set_device(device)
        rate = read_rate(arguments.device)
    subjects = [synthetic(arguments.shape, device)]
    if arguments.model is not None:
        subjects.append(real(arguments.model, device))
    result: dict[str, Any] = {
        "seed": SEED,
        "context": CONTEXT,
        "read_bytes_per_second": rate,
        "models": [subject.result for subject in subjects],
    }

    def keep() -> None:
        save("quantized_step", result, arguments.out)

    for fused in (False, True) if device.type == "cuda" else (False,):
        for subject in subjects:
            print(subject.result["model"], flush=True)
            for quantization in (NONE,) if fused else NAMES:
                try:
                    run(subject, quantization, device, fused, rate, keep)
                except (
                    ModelLoadError,
                    RuntimeError,
                ) as error:  # refused, or a kernel's; the others are measured anyway
                    subject.result["measured"][-1]["failed"] = str(error)
                    print(f"  {quantization}: {error}", flush=True)
                    keep()


if __name__ == "__main__":
    main()
