"""What one step of the engine costs on a GPU, for 1 to 64 positions of one session and for many sessions at once.

    python -m tests.benchmarks.engine_step [--device cuda:0] [--out DIRECTORY] [--layers 32]

The model has the shape of Llama-3.1-8B and random weights (bfloat16). The floor is reading its weights once (embeddings
excepted) at the rate at which a plain kernel reads memory, measured in the same run; where contexts are long, the KV
that a step must read is added. `device` is the time on the GPU (CUDA events around the step), `wall` the time of
`Engine.forward` until the logits are there. Then the same tokens are decoded alone, verified in chains and trees, and
batched with others, and the logits are compared bit by bit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.engine.engine import Engine, Feed  # before torch: see outrider.engine

import torch  # isort: skip
from outrider.acceptance.tree import TokenTree
from outrider.engine.options import EngineOptions
from outrider.engine.sequence import NO_TREE, KvSequence
from tests.benchmarks.matrix_products import read_rate
from tests.benchmarks.record import RESULTS, save
from tests.benchmarks.synthetic_pair import loaded, synthetic_model

CASES = [
    (1, 1, 512),
    (1, 4, 512),
    (1, 8, 512),
    (1, 16, 512),
    (1, 32, 512),
    (1, 64, 512),
    (4, 6, 512),
    (16, 6, 512),
    (32, 1, 512),
    (32, 6, 512),
    (32, 1, 2048),
    (32, 6, 2048),
    (64, 1, 512),
    (1, 1, 8000),
]
REPEATS = 30
SEED = 1


def text(length: int, seed: int = SEED) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 128000, (length,), generator=generator).tolist()


def opened(engine: Engine, sessions: int, context: int) -> list[KvSequence]:
    """Sessions with `context` tokens in the cache each."""
    found = []
    for session in range(sessions):
        tokens = text(context + 1, seed=session)
        sequence = engine.open(tokens, context + 80, salt=str(session))
        for start in range(len(sequence.cached), context, 2048):
            engine.forward([Feed(sequence, tokens[start : min(start + 2048, context)], want_logits=False)])
        found.append(sequence)
    return found


def step(engine: Engine, sequences: Sequence[KvSequence], rows: int) -> torch.Tensor:
    """One step of `rows` rows a session: a token, and a proposal that is then dropped."""
    feeds = [
        Feed(sequence, text(1, 7), TokenTree.chain(text(rows - 1, 8)) if rows > 1 else NO_TREE)
        for sequence in sequences
    ]
    logits = engine.forward(feeds)
    for sequence in sequences:  # back to before the step
        sequence.tree = NO_TREE
        del sequence.cached[-1:]
    return logits


def measure(engine: Engine, sessions: int, rows: int, context: int) -> dict[str, Any]:
    """Milliseconds of the steps."""
    sequences = opened(engine, sessions, context)
    for _ in range(3):
        step(engine, sequences, rows)
    wall, device = [], []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        started = time.perf_counter()
        begin.record()
        step(engine, sequences, rows)
        end.record()
        launched = time.perf_counter()
        torch.cuda.synchronize()
        wall.append((time.perf_counter() - started) * 1000)
        device.append(begin.elapsed_time(end))
    replay = replay_ms(engine, sessions * rows)
    for sequence in sequences:
        engine.close(sequence)
    return {
        "replay_ms": replay,
        "sessions": sessions, "rows": rows, "context": context, "wall_ms": statistics.median(wall),
        "device_ms": statistics.median(device), "launch_ms": (launched - started) * 1000, "samples_device_ms": device,
    }  # fmt: skip


def replay_ms(engine: Engine, rows: int) -> float | None:
    """Milliseconds of the last step's CUDA graph alone, without the host between steps; None where there is none."""
    graphs = getattr(engine._run, "_graphs", {})
    shape = getattr(engine._run, "last_shape", None)
    if shape not in graphs:
        return None
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(20):
        graphs[shape][0].replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 20


def same_bits(engine: Engine) -> dict[str, bool]:
    """Are a token's logits the same however it is computed?"""
    tokens = text(330, seed=99)
    start = 300
    alone = _alone(engine, tokens, start)
    found = {}
    for name, width in (("chain_of_5", 5), ("chain_of_16", 16), ("chain_of_30", 30)):
        sequence = _prefilled(engine, tokens, start)
        rows = []
        for place in range(start, len(tokens), width):
            part = tokens[place : place + width]
            rows.append(engine.forward([Feed(sequence, part[:1], TokenTree.chain(part[1:]))]))
            sequence.cached.extend(part[1:])
            sequence.tree = NO_TREE
        found[name] = torch.equal(torch.cat(rows), alone)
        engine.close(sequence)
    sequence = _prefilled(engine, tokens, start)
    # Every node has a wrong sibling before it.
    nodes, parents, last = [], [], -1
    for token in tokens[start + 1 :]:
        nodes += [token ^ 1, token]
        parents += [last, last]
        last = len(nodes) - 1
    logits = engine.forward([Feed(sequence, tokens[start : start + 1], TokenTree(tuple(nodes), tuple(parents)))])
    found["tree"] = torch.equal(logits[[0, *range(2, len(logits), 2)]], alone)
    engine.close(sequence)
    sequence = _prefilled(engine, tokens, start)
    others = opened(engine, 7, 200)
    rows = []
    for place in range(start, len(tokens)):
        feeds = [Feed(other, text(1, place)) for other in others[: place % 8]]
        rows.append(engine.forward([*feeds, Feed(sequence, tokens[place : place + 1])])[-1:])
    found["batched"] = torch.equal(torch.cat(rows), alone)
    for each in [sequence, *others]:
        engine.close(each)
    for name, chunk in (("prefill_in_64s", 64), ("prefill_in_100s", 100), ("prefill_by_7", 7)):
        sequence = engine.open(tokens, 400, salt=name)
        for place in range(0, start, chunk):
            engine.forward([Feed(sequence, tokens[place : min(place + chunk, start)], want_logits=False)])
        found[name] = torch.equal(engine.forward([Feed(sequence, tokens[start : start + 1])]), alone[:1])
        engine.close(sequence)
    return found


def _prefilled(engine: Engine, tokens: list[int], start: int) -> KvSequence:
    sequence = engine.open(tokens, 500, salt=str(time.perf_counter()))
    engine.forward([Feed(sequence, tokens[:start], want_logits=False)])
    return sequence


def _alone(engine: Engine, tokens: list[int], start: int) -> torch.Tensor:
    sequence = _prefilled(engine, tokens, start)
    rows = [engine.forward([Feed(sequence, [token])]) for token in tokens[start:]]
    engine.close(sequence)
    return torch.cat(rows)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--name", default="engine_step")
    parser.add_argument("--general", action="store_true", help="transformers' modules instead of the fused path")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rate = read_rate(arguments.device)
    started = time.perf_counter()
    module = synthetic_model(arguments.layers, arguments.device)
    weights = 2 * sum(p.numel() for name, p in module.named_parameters() if "embed" not in name)
    floor = weights / rate * 1000
    print(
        f"reads at {rate / 1e9:.0f} GB/s; floor {floor:.2f} ms; model made in {time.perf_counter() - started:.1f} s",
        flush=True,
    )
    started = time.perf_counter()
    options = EngineOptions(memory_fraction=0.5, max_batch_tokens=2048, fused=not arguments.general)
    engine = Engine(loaded(module, arguments.device), options)
    print(f"engine ready in {time.perf_counter() - started:.1f} s, {engine.capacity_tokens} tokens of KV", flush=True)
    result: dict[str, Any] = {
        "seed": SEED, "read_bytes_per_second": rate, "weight_bytes": weights, "floor_ms": floor, "steps": [],
        "same_bits": same_bits(engine),
    }  # fmt: skip
    print(result["same_bits"], flush=True)
    config = module.config
    token_bytes = 2 * 2 * config.num_key_value_heads * config.head_dim * arguments.layers
    for sessions, rows, context in CASES:
        found = measure(engine, sessions, rows, context)
        bound = floor + sessions * context * token_bytes / rate * 1000
        found |= {"bound_ms": bound, "over_bound": (found["replay_ms"] or found["device_ms"]) / bound}
        result["steps"].append(found)
        print(
            f"{sessions:3} x {rows:2} at {context:5}: graph {found['replay_ms'] or 0:.2f} ms,"
            f" device {found['device_ms']:.2f}, wall {found['wall_ms']:.2f}, bound {bound:.2f},"
            f" ratio {found['over_bound']:.2f}, launched in {found['launch_ms']:.2f}",
            flush=True,
        )
        save(arguments.name, result, arguments.out)
    if not arguments.general:
        result["profile"] = profile(engine)
        save(arguments.name, result, arguments.out)


def profile(engine: Engine) -> list[dict[str, Any]]:
    """Microseconds by kernel of a step of one session with 16 rows."""
    from torch.profiler import ProfilerActivity

    sequences = opened(engine, 1, 512)
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(5):
            step(engine, sequences, 16)
        torch.cuda.synchronize()
    rows = [
        {"kernel": event.key[:90], "us_a_step": event.self_device_time_total / 5, "calls": event.count / 5}
        for event in found.key_averages()
    ]
    rows.sort(key=lambda row: -row["us_a_step"])
    for row in rows[:14]:
        print(f"{row['us_a_step']:9.1f} us {row['calls']:6.1f} x {row['kernel']}", flush=True)
    return rows[:30]


if __name__ == "__main__":
    main()
