"""What the kernels beside the matrix products cost, each by itself, in an 8B model's shape; and attention's settings.

    python -m tests.benchmarks.small_kernels [--tune] [--out DIRECTORY]

Each kernel is launched 32 times in a CUDA graph, over 8 layers' caches in turn. `bound` is reading the keys and values.
"""

from __future__ import annotations

import argparse
import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from outrider.engine.batch import Feed  # before torch: see outrider.engine

import torch  # isort: skip
from outrider.acceptance.tree import TokenTree
from outrider.engine.blocks import BlockPool
from outrider.engine.fused import attend as attention
from outrider.engine.fused import plan, rotary
from outrider.engine.fused.attend import attend
from outrider.engine.fused.gate import gated
from outrider.engine.fused.merging import Workspace
from outrider.engine.fused.norm import AddNorm
from outrider.engine.fused.plan import PlanBuffer, Shape
from outrider.engine.fused.rotary import RotaryTables, rotate_and_store
from outrider.engine.kv import KvStore, LayerShape, SlotMoves
from outrider.engine.sequence import NO_TREE, KvSequence
from tests.benchmarks.matrix_products import graph_seconds, read_rate
from tests.benchmarks.record import RESULTS, save

HEADS, KV_HEADS, SIZE, LAYERS, LAUNCHES = 32, 8, 128, 8, 32
CASES = [
    (1, 1, 512),
    (1, 16, 512),
    (1, 64, 512),
    (32, 1, 512),
    (32, 6, 512),
    (32, 1, 2048),
    (32, 6, 2048),
    (1, 1, 8000),
]
SETTINGS = [
    (tall, by_last, programs, together)
    for tall, by_last, programs in itertools.product((False, True), (False, True), (132, 264))
    for together in ((4, 8) if by_last else (8,))
]
"""Of the attention: tall tiles; who merges; programs; splits merged at a time."""

DEVICE = torch.device("cuda")


class Cache:
    """Caches of some layers, and sessions in them."""

    def __init__(self) -> None:
        slots = 1 << 17
        shape = LayerShape(KV_HEADS, SIZE, SIZE)
        self.store = KvStore(dict.fromkeys(range(LAYERS), shape), slots + 192, dtype=torch.bfloat16, device=DEVICE)
        for layer in self.store.layers.values():
            layer.keys.normal_()
            layer.values.normal_()
        self.pool = BlockPool(slots // 16, 16)
        self.plans = PlanBuffer(
            DEVICE, rows=2048, table_entries=1 << 18, split_entries=8192, block_size=16, spare_block=slots // 16,
            shared_by=HEADS // KV_HEADS,
        )  # fmt: skip
        self.workspace = Workspace(8192, HEADS, SIZE, DEVICE)

    def plan(self, sessions: int, rows: int, context: int) -> plan.Plan:
        """Of sessions that verify chains of `rows` rows after `context` tokens."""
        room = context + max(rows, 80)
        sequences = [KvSequence(self.pool, SlotMoves(), [1] * 9, room, str(i), share=False) for i in range(sessions)]
        for sequence in sequences:
            sequence.cached = [0] * context
        feeds = [Feed(each, [1], TokenTree.chain([1] * (rows - 1)) if rows > 1 else NO_TREE) for each in sequences]
        layout = self.plans.lay_out(feeds)
        found = self.plans.fill(layout, Shape(len(layout), layout.most_tiles, len(layout), layout.tall))
        assert len(found.slices) == 1
        for sequence in sequences:
            sequence.close()
        return found


def attention_us(cache: Cache, case: tuple[int, int, int]) -> float:
    """Microseconds of one layer's attention."""
    found = cache.plan(*case)
    query = torch.randn(found.shape.rows, HEADS, SIZE, dtype=torch.bfloat16, device=DEVICE)
    output = torch.empty_like(query)

    def work() -> None:
        for index in range(LAUNCHES):
            attend(query, cache.store.layers[index % LAYERS], found, cache.workspace, SIZE**-0.5, output)

    return graph_seconds(work, LAUNCHES) * 1e6


def between_products_us(cache: Cache, case: tuple[int, int, int]) -> float:
    """Microseconds of what a layer does besides products, in its order: each kernel is set up during the one before."""
    found = cache.plan(*case)
    rows = found.shape.rows

    def like(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=DEVICE)

    norm, residual, normed = AddNorm(like(4096), 1e-5), like(rows, 4096), like(rows, 4096)
    branch, projection = like(4, rows, 4096, dtype=torch.float32), like(4, rows, 6144, dtype=torch.float32)
    tables = RotaryTables(like(8192, 64, dtype=torch.float32), like(8192, 64, dtype=torch.float32))
    query, output = like(rows, HEADS, SIZE), like(rows, HEADS, SIZE)

    def work() -> None:
        for index in range(LAUNCHES):
            kv = cache.store.layers[index % LAYERS]
            norm(residual, branch, normed)
            rotate_and_store(projection, None, None, tables, found.positions, found.slots, query, kv)
            attend(query, kv, found, cache.workspace, SIZE**-0.5, output)
            norm(residual, branch, normed)

    return graph_seconds(work, LAUNCHES) * 1e6


def others_us(cache: Cache, rows: int) -> dict[str, float]:
    """Microseconds of the other kernels."""
    found = cache.plan(1, rows, 512)

    def like(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=DEVICE)

    norm, residual, normed = AddNorm(like(4096), 1e-5), like(rows, 4096), like(rows, 4096)
    parts, projection, both = (
        like(4, rows, 4096, dtype=torch.float32),
        like(4, rows, 6144, dtype=torch.float32),
        like(1, rows, 28672),
    )
    tables = RotaryTables(like(4096, 64, dtype=torch.float32), like(4096, 64, dtype=torch.float32))
    query, activated = like(rows, HEADS, SIZE), like(rows, 14336)
    kv = cache.store.layers[0]
    works = {
        "add_norm": lambda: norm(residual, parts, normed),
        "rotate_and_store": lambda: rotate_and_store(
            projection, None, None, tables, found.positions, found.slots, query, kv
        ),
        "gated": lambda: gated(both, activated),
    }
    if rotary.MANY_ROWS < rows <= 64:
        works["rotate_and_store, few heads a program"] = patch.object(rotary, "MANY_ROWS", rows)(
            works["rotate_and_store"]
        )
    found_us = {}
    for name, work in works.items():

        def launches(work: Any = work) -> None:
            for _ in range(LAUNCHES):
                work()

        found_us[name] = graph_seconds(launches, LAUNCHES) * 1e6
    return found_us


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rate = read_rate()
    result: dict[str, Any] = {
        "read_bytes_per_second": rate, "others_us": {}, "attention_us": {}, "between_products_us": {}, "tuned_us": {}
    }  # fmt: skip
    cache = Cache()
    for rows in (1, 16, 64, 192):
        result["others_us"][rows] = others_us(cache, rows)
        print(rows, {name: round(us, 2) for name, us in result["others_us"][rows].items()}, flush=True)
    for case in CASES:
        us = attention_us(cache, case)
        bound = case[0] * case[2] * KV_HEADS * SIZE * 4 / rate * 1e6
        result["attention_us"]["x".join(map(str, case))] = {"us": us, "bound_us": bound}
        between = result["between_products_us"]["x".join(map(str, case))] = between_products_us(cache, case)
        print(case, f"{us:.1f} us, bound {bound:.1f}; between products {between:.1f}", flush=True)
    save("small_kernels", result, arguments.out)
    if arguments.tune:
        for tall, by_last, programs, together in SETTINGS:
            settings = {"LAST_FROM": 1 if by_last else 1 << 30, "PROGRAMS": programs, "TOGETHER": together}
            with ExitStack() as stack:
                stack.enter_context(patch.object(plan, "TALL_FROM", 64 if tall else 1 << 30))
                for key, value in settings.items():
                    stack.enter_context(patch.object(attention, key, value))
                found = [attention_us(cache, case) for case in CASES]
                between = [between_products_us(cache, case) for case in CASES]
            name = ", ".join([f"tall {tall}", *(f"{key} {value}" for key, value in settings.items())])
            result["tuned_us"][name] = {"attention": found, "between_products": between}
            print(f"{name}\n" + "".join(f"{us:7.1f}" for us in found) + " | " + "".join(f"{us:7.1f}" for us in between))
        save("small_kernels", result, arguments.out)


if __name__ == "__main__":
    main()
