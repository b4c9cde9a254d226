"""Which tiles of a product that brings weights ahead make a whole step of an 8B model faster, and by how much.

    python -m tests.benchmarks.product_in_step [--rows 16 32 64] [--seconds 150] [--out DIRECTORY]

What such a product gains, it gains while the kernels before it run (`outrider.engine.fused.ring_product`).
So one product of a step is changed at a time, the others are as the engine has them, and the step's CUDA graph is
timed: 512 tokens of context, one session. `without` is the product as it is without a ring. Tiles whose results differ
from it in a single bit are said to.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from outrider.engine.engine import Engine  # before torch: see outrider.engine

import torch  # isort: skip
from outrider.engine.fused import gated_product, product, runner
from outrider.engine.fused.gated_product import StreamGated
from outrider.engine.fused.product import StreamProduct, parts_of
from outrider.engine.fused.ring_product import RingTile, gated_ring_tile, ring_tile
from outrider.engine.options import EngineOptions
from tests.benchmarks.engine_step import opened, replay_ms, step
from tests.benchmarks.matrix_products import SHAPES, random_weight, read_rate
from tests.benchmarks.record import RESULTS, save
from tests.benchmarks.synthetic_pair import loaded, synthetic_model

KIB_FOR = (227, 113, 75)
"""Shared memory for a program where one, two, three are on a multiprocessor."""

Choice = RingTile | None


def candidates(name: str, rows: int) -> list[RingTile]:
    """What is tried: as many slots as one, two or three programs a multiprocessor have room for."""
    columns, depth = SHAPES[name]
    gated = name == "gate_up"
    part = depth if gated else depth // parts_of(columns, depth)
    found = set()
    for wide, deep, kib in itertools.product((64, 128), (64, 128), KIB_FOR):
        slot = (wide * (2 if gated else 1) + rows) * deep * 2
        slots = min((kib * 1024 - 256) // slot, part // deep, 12)
        if slots < 2 or (gated and wide > 64):
            continue
        leads = {(1, 1), (slots, 1), (slots, 2), (slots, slots)}
        found |= {RingTile(rows, wide, deep, slots, lead, min(pace, lead), wide // 16) for lead, pace in leads}
    return sorted(found, key=str)


@contextmanager
def chosen(name: str, tile: Choice) -> Iterator[None]:
    """The engine's own tiles, but for one product."""
    columns, depth = SHAPES[name]

    def of_product(rows: int, n: int, k: int, parts: int) -> Choice:
        return tile if (n, k) == (columns, depth) else ring_tile(rows, n, k, parts)

    with ExitStack() as stack:
        if name == "gate_up":
            stack.enter_context(patch.object(gated_product, "gated_ring_tile", lambda rows, k: tile))
        else:
            stack.enter_context(patch.object(product, "ring_tile", of_product))
        yield


def result_of(name: str, weight: torch.Tensor, rows: int, tile: Choice) -> torch.Tensor:
    """The product's result for random inputs, from memory that held something else."""
    generator = torch.Generator("cuda").manual_seed(rows)
    x = torch.randn(rows - 3, weight.shape[1], dtype=torch.bfloat16, device="cuda", generator=generator)
    with chosen(name, tile):
        if name == "gate_up":
            output = torch.full((len(x), len(weight) // 2), float("nan"), dtype=x.dtype, device="cuda")
            StreamGated(weight)(x, output, output)
            return output
        made = StreamProduct(weight)
        return made(x, torch.full((len(x) * made.row_bytes,), 0x7F, dtype=torch.uint8, device="cuda"))


class Steps:
    """An engine, and a session that takes steps of some rows."""

    def __init__(self) -> None:
        with patch.object(runner, "GRAPH_ROWS", (16, 32, 64)):
            options = EngineOptions(memory_fraction=0.5, max_batch_tokens=2048)
            self._engine = Engine(loaded(synthetic_model(32, "cuda:0"), "cuda:0"), options)
            self._sequences = opened(self._engine, 1, 512)

    def milliseconds(self, rows: int) -> float:
        """Of a step's graph, recorded anew: the best of three times twenty."""
        with patch.object(runner, "GRAPH_ROWS", (16, 32, 64)):
            self._engine._run._graphs.clear()
            step(self._engine, self._sequences, rows)
            torch.cuda.synchronize()
            return min(replay_ms(self._engine, rows) or float("inf") for _ in range(3))


def compare(steps: Steps, name: str, rows: int, until: float) -> dict[str, Any]:
    """Milliseconds of a step by tile, the best first."""
    columns, depth = SHAPES[name]
    weight = random_weight(SHAPES[name])
    expected = result_of(name, weight, rows, None)
    now = (
        gated_ring_tile(rows, depth) if name == "gate_up" else ring_tile(rows, columns, depth, parts_of(*SHAPES[name]))
    )
    entry: dict[str, Any] = {"now": str(now), "now_ms": steps.milliseconds(rows), "tiles": []}
    with chosen(name, None):
        entry["without_ms"] = steps.milliseconds(rows)
    for tile in candidates(name, rows):
        if time.monotonic() > until:
            entry["cut_short"] = True
            break
        try:
            same = torch.equal(result_of(name, weight, rows, tile), expected)
            with chosen(name, tile):
                entry["tiles"].append((steps.milliseconds(rows), same, str(tile)))
        except Exception as error:  # a tile that does not fit
            entry["tiles"].append((1e9, False, f"{tile}: {repr(error)[:100]}"))
    entry["tiles"].sort()
    return entry


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[16, 32, 64])
    parser.add_argument("--products", nargs="*", default=["query_key_value", "output", "gate_up", "down"])
    parser.add_argument("--seconds", type=float, default=150.0, help="begin nothing new after so long")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"read_bytes_per_second": read_rate(), "rows": {}}
    steps = Steps()
    until = time.monotonic() + arguments.seconds
    for rows, name in itertools.product(arguments.rows, arguments.products):
        entry = result["rows"].setdefault(str(rows), {})[name] = compare(steps, name, rows, until)
        best = "; ".join(
            f"{ms:.3f}{'' if same else ' OTHER BITS'} {tile[8:-1]}" for ms, same, tile in entry["tiles"][:3]
        )
        print(
            f"{rows:3} rows, {name:16} without {entry['without_ms']:.3f}, now {entry['now_ms']:.3f} | {best}",
            flush=True,
        )
        save("product_in_step", result, arguments.out)


if __name__ == "__main__":
    main()
