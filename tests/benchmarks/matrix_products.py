"""What the products of a few rows with the weights of an 8B model cost on a GPU, and how far that is from the floor.

    python -m tests.benchmarks.matrix_products [--out DIRECTORY]

The floor is reading the weights once at the rate at which a plain kernel reads memory, measured here. Each product runs
in a CUDA graph over enough copies of the weight to leave the second-level cache behind. For cuBLAS and for each tiling
of ours it is also found out whether a row's result depends on how many rows there are.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.fused.gated_product import GatedProduct, SeparateGate, StreamGated, gated_tile
from outrider.engine.fused.product import (
    FEW_ROWS,
    LibraryProduct,
    Product,
    StreamProduct,
    Tile,
    parts_of,
    tile_for,
)
from outrider.engine.fused.tall_product import TallTile, tall_tile
from tests.benchmarks.record import RESULTS, save

SHAPES = {
    "query_key_value": (6144, 4096),
    "output": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
ROWS = (1, 4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
CACHE_BYTES = 256 << 20
REPEATS = 7


@triton.jit
def _read(source, target, size, block: tl.constexpr, blocks: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * block * blocks
    total = tl.zeros((block,), tl.float32)
    for index in range(blocks):
        total += tl.load(source + start + index * block + tl.arange(0, block)).to(tl.float32)
    tl.store(target + tl.program_id(0), tl.sum(total))


def read_rate(device: str = "cuda") -> float:
    """Bytes a second at which a plain kernel reads device memory; the best of a few block sizes."""
    data = torch.randn(1 << 31, dtype=torch.bfloat16, device=device)
    best = 0.0
    for block, blocks in ((4096, 16), (8192, 8), (8192, 32), (16384, 16)):
        programs = data.numel() // (block * blocks)
        target = torch.empty(programs, device=device)
        launch = partial(_read[(programs,)], data, target, data.numel(), block=block, blocks=blocks, num_warps=8)
        seconds = graph_seconds(launch)
        best = max(best, data.numel() * 2 / seconds)
    return best


def graph_seconds(work: Callable[[], Any], inner: int = 1) -> float:
    """Median seconds of one of the `inner` pieces of `work`, replayed as a CUDA graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    samples = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / 1000)
    return statistics.median(samples) / inner


def tiles(rows: int, columns: int, depth: int) -> list[Tile] | list[TallTile]:
    """What is tried for so many rows and a weight [columns, depth]."""
    if rows > FEW_ROWS:
        return tall_tiles(rows, cut=parts_of(columns, depth) > 1)
    part = depth // parts_of(columns, depth)
    found = []
    height = min(max(16, 1 << (rows - 1).bit_length()), 64)
    for width, deep, stages, warps in itertools.product((64, 128), (64, 128), (3, 4, 6), (4, 8)):
        memory = (width + height) * deep * 2 * stages
        if part % deep or memory > 200_000 or (warps == 8 and (width < 128 or height < 64)):
            continue
        found.append(Tile(height, width, deep, stages, warps))
    return found


def tall_tiles(rows: int, *, cut: bool) -> list[TallTile]:
    """The same for many rows: those that fit into a multiprocessor's memory and registers, and leave few unused.

    `cut`: the sums are cut, so that a program may add up their parts, for which it needs twice the registers.
    """
    found = []
    for (height, more), width, stages, warps, together in itertools.product(
        ((64, 0), (64, 32), (128, 0), (128, 64), (256, 0)), (64, 128, 256), (3, 4, 5), (4, 8), {False, cut}
    ):
        tall, sums = height + more, 2 if together else 1
        unused = -(-rows // tall) * tall - rows
        if unused > rows // 3 or (width + tall) * 64 * 2 * stages > 227_000 or sums * width * tall > warps * 32 * 208:
            continue
        found.append(TallTile(height, more, width, 64, stages, warps, together))
    return found


class Gated:
    """A gated product as a `Product`: its result goes to memory of its own."""

    def __init__(self, product: GatedProduct, columns: int) -> None:
        self._product = product
        self._columns = columns
        self.row_bytes = max(product.row_bytes, 1)

    def __call__(self, x: Tensor, memory: Tensor) -> Tensor:
        """See `Product`."""
        output = x.new_empty(len(x), self._columns)
        self._product(x, memory, output)
        return output[None]


def gated_tiles(rows: int) -> list[Tile]:
    """What is tried for the gated product of so many rows."""
    height = min(1 << max(rows - 1, 15).bit_length(), 256)
    shapes = itertools.product({height, min(height, 128)}, (64, 128), (64, 128), (3, 4, 6), (4, 8))
    return [
        Tile(tall, width, deep, stages, warps)
        for tall, width, deep, stages, warps in shapes
        if (2 * width + tall) * deep * 2 * stages <= 220_000 and 2 * width * tall <= warps * 8192
    ]


def measure_gated(entry: dict[str, Any], tune: Sequence[int]) -> None:
    """Gate, up and activation in one kernel and in two; that their bits are the same; tiles of the one."""
    shape = SHAPES["gate_up"]
    kinds: dict[str, Callable[[Tensor], GatedProduct]] = {
        "separate": lambda weight: SeparateGate(StreamProduct(weight)), "together": StreamGated
    }  # fmt: skip
    weight = random_weight(shape)
    memory = torch.empty(192 * shape[0] * 2, dtype=torch.uint8, device="cuda")
    for rows in (1, 17, 64, 192):  # the last in two kernels of different kinds
        x = torch.randn(rows, shape[1], dtype=torch.bfloat16, device="cuda")
        one, two = (Gated(make(weight), shape[0] // 2)(x, memory) for make in kinds.values())
        assert torch.equal(one, two)
    for name, make in kinds.items():
        us = entry[f"{name}_us"] = measure(lambda weight: Gated(make(weight), shape[0] // 2), shape, ROWS)  # noqa: B023
        print(f"   gated, {name:8} {_row(us)}", flush=True)
    for rows in tune:
        found = []
        for tile in gated_tiles(rows):
            try:
                us = measure(lambda weight: Gated(StreamGated(weight, tile), shape[0] // 2), shape, (rows,))  # noqa: B023
            except Exception as error:  # a tile that does not fit
                found.append((1e9, repr(error)[:100]))
                continue
            found.append((us[str(rows)], str(tile)))
        entry["tiles"][f"{rows}, gated"] = sorted(found)
        best = "; ".join(f"{us:.1f} {tile[5:-1]}" for us, tile in sorted(found)[:4])
        print(f"   {rows:5} rows, gated: {best}  now {str(gated_tile(rows, shape[1]))[5:-1]}", flush=True)


def independent(product: Product, depth: int) -> bool:
    """True if row i of 64 has the same bits as among fewer rows, at another place and alone."""
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(64, depth, dtype=torch.bfloat16, device="cuda", generator=generator)
    memory = torch.empty(2048 * product.row_bytes, dtype=torch.uint8, device="cuda")
    whole = summed(product(x, memory))
    for rows in (1, 2, 3, 5, 8, 13, 16, 17, 32, 33, 48):
        for start in (0, 64 - rows):
            found = summed(product(x[start : start + rows].contiguous(), memory))
            if not torch.equal(found, whole[start : start + rows]):
                return False
    others = torch.cat([x.roll(7, 0)] * 8)
    return all(
        torch.equal(summed(product(torch.cat([others[:before], x, x[:5]]), memory))[before : before + 64], whole)
        for before in (1, 27, 60, 123, 187, 315, 443, 512)
    )


def summed(parts: Tensor) -> Tensor:
    """Their sum [T, N] as the kernels after a product add them up, in new memory."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


def measure(make: Callable[[Tensor], Product], shape: tuple[int, int], rows: tuple[int, ...]) -> dict[str, float]:
    """Microseconds by number of rows."""
    columns, depth = shape
    copies = max(2, CACHE_BYTES // (columns * depth * 2) + 1)
    weights = [random_weight(shape) for _ in range(copies)]
    products = [make(weight) for weight in weights]
    memory = torch.empty(max(rows) * products[0].row_bytes, dtype=torch.uint8, device="cuda")
    found = {}
    for count in rows:
        x = torch.randn(count, depth, dtype=torch.bfloat16, device="cuda")
        turns = max(1, 16 // copies)
        work = lambda: [product(x, memory) for _ in range(turns) for product in products]  # noqa: B023, E731
        found[str(count)] = graph_seconds(work, inner=turns * copies) * 1e6
    return found


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--tune", nargs="*", type=int, default=[], help="numbers of rows for which tiles are compared")
    parser.add_argument("--gated-only", action="store_true", help="compare tiles of the gated product only")
    arguments = parser.parse_args()
    rate = read_rate()
    print(f"reads at {rate / 1e9:.0f} GB/s", flush=True)
    result: dict[str, Any] = {"read_bytes_per_second": rate, "shapes": {}}
    for name in arguments.shapes:
        columns, depth = shape = SHAPES[name]
        parts = parts_of(*shape)
        entry = result["shapes"][name] = {
            "shape": shape, "parts": parts, "floor_us": columns * depth * 2 / rate * 1e6, "tiles": {},
            "cublas_us": measure(LibraryProduct, shape, ROWS), "ours_us": measure(StreamProduct, shape, ROWS),
            "rows_independent": {
                kind.__name__: independent(kind(random_weight(shape)), depth)
                for kind in (LibraryProduct, StreamProduct)
            },
        }  # fmt: skip
        print(f"{name:16} floor {entry['floor_us']:6.1f}  {entry['rows_independent']}", flush=True)
        print(f"   cublas {_row(entry['cublas_us'])}\n   ours   {_row(entry['ours_us'])}", flush=True)
        if name == "gate_up":
            measure_gated(entry, arguments.tune)
        save("matrix_products", result, arguments.out)
        for rows in arguments.tune if not arguments.gated_only else ():
            own = []
            for tile in tiles(rows, *shape):
                try:
                    us = measure(lambda weight: StreamProduct(weight, tile), shape, (rows,))[str(rows)]  # noqa: B023
                except Exception as error:  # a tile that does not fit
                    own.append((1e9, repr(error)[:100]))
                    continue
                own.append((us, str(tile)))
            own.sort()
            entry["tiles"][str(rows)] = own
            now = tall_tile(rows, columns, parts) if rows > FEW_ROWS else tile_for(rows, columns, depth, parts)
            best = "; ".join(f"{us:.1f} {tile}" for us, tile in own[:3])
            print(f"   {rows:5} rows: {best}  now {now}", flush=True)
            save("matrix_products", result, arguments.out)


def random_weight(shape: tuple[int, int]) -> Tensor:
    """Of the size that keeps results near 1."""
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda") * shape[1] ** -0.5


def _row(found: dict[str, float]) -> str:
    return " ".join(f"{value:6.1f}" for value in found.values())


if __name__ == "__main__":
    main()
