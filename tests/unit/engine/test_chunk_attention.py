"""Attention of prompts in tall tiles: the bits of small ones. The kernel itself needs a Hopper GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from outrider.engine.batch import Feed
from outrider.engine.blocks import BlockPool
from outrider.engine.fused import chunk_trial
from outrider.engine.fused.attend import attend
from outrider.engine.fused.borders import rows_per_tile
from outrider.engine.fused.chunk_attention import HEIGHTS
from outrider.engine.fused.chunk_trial import chunk_height
from outrider.engine.fused.layout import Chunks, Layout, Tiling
from outrider.engine.fused.merging import Workspace
from outrider.engine.fused.plan import PlanBuffer, Shape
from outrider.engine.kv import KvStore, LayerShape, SlotMoves
from outrider.engine.sequence import NO_TREE, KvSequence

MODELS = [(32, 8, 128, 16), (9, 3, 64, 8), (14, 2, 64, 16), (12, 2, 128, 20), (8, 8, 128, 16), (24, 1, 64, 32)]
"""Heads, heads of keys and their size, and block size: 8B, SmolLM2, Qwen2.5 0.5B and 1.5B, and two more."""

COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from outrider.engine.fused.borders import BLOCK, LONG_SPLIT, SHORT_SPLITS
from outrider.engine.fused.chunk_attention import HEIGHTS
from outrider.engine.fused.chunk_kernel import attend_chunk
from tests.unit.engine.test_chunk_attention import MODELS
from tests.unit.engine.test_ring_product import HOPPER_KIB

for heads, kv_heads, size, block_size in MODELS:
    constants = {"kv_heads": kv_heads, "shared_by": heads // kv_heads, "size": size, "height": HEIGHTS[size]}
    constants |= {"block_size": block_size, "block": BLOCK, "short_splits": SHORT_SPLITS, "long_split": LONG_SPLIT}
    constants |= {"overlap": True}
    names = attend_chunk.arg_names
    kinds = dict.fromkeys(names, "*i32") | dict.fromkeys(("query", "keys", "values", "output"), "*bf16")
    kinds |= {"scale": "fp32"} | dict.fromkeys(constants, "constexpr")
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names if kinds[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    options = {"num_warps": HEIGHTS[size] // 16, "launch_pdl": True, "enable_fp_fusion": False}
    done = compile(GluonASTSource(attend_chunk, kinds, values, aligned), GPUTarget("cuda", 90, 32), options)
    ptx = done.asm["ptx"]
    assert done.metadata.shared <= HOPPER_KIB * 1024
    assert ptx.index("griddepcontrol.launch_dependents") < ptx.index("griddepcontrol.wait") < ptx.index("cp.async")
    assert "wgmma.mma_async" in ptx
print("compiled", len(MODELS))
"""


def test_the_kernel_compiles_for_hopper() -> None:
    """Needs no GPU. A process of its own, for in this one kernels may be interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["compiled", str(len(MODELS))]


class Trial:
    """In the place of the one that needs a GPU."""

    def __init__(self, *_: object) -> None:
        pass

    def same_bits(self, height: int) -> bool:
        raise NotImplementedError("this Triton has another Gluon")


class Same(Trial):
    def same_bits(self, height: int) -> bool:
        return True


class Other(Trial):
    def same_bits(self, height: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("capability", "trial", "expected", "said"),
    [
        ((9, 0), Same, 32, ""),
        ((9, 0), Other, 0, "other bits here"),
        ((9, 0), Trial, 0, "another Gluon"),
        ((10, 0), Trial, 0, ""),
        ((8, 0), Trial, 0, ""),
    ],
)
def test_a_kernel_that_fails_or_has_other_bits_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capability: tuple[int, int],
    trial: Callable[..., Trial],
    expected: int,
    said: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(chunk_trial, "_Trial", trial)
    gpu, shape = torch.device("cuda", 0), LayerShape(8, 128, 128)
    assert chunk_height(32, shape, 16, torch.bfloat16, gpu) == expected
    assert chunk_height(32, shape, 16, torch.bfloat16, torch.device("cpu")) == 0
    assert chunk_height(32, shape, 16, torch.float32, gpu) == 0
    assert chunk_height(32, LayerShape(8, 80, 80), 16, torch.bfloat16, gpu) == 0
    assert chunk_height(48, LayerShape(1, 128, 128), 16, torch.bfloat16, gpu) == 0, "its small tiles are tall already"
    assert len(caplog.messages) == bool(said)
    assert said in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "kv_heads", "size", "block_size"), MODELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_bits_are_those_of_small_tiles(
    hopper: torch.device, heads: int, kv_heads: int, size: int, block_size: int, dtype: torch.dtype
) -> None:
    """Sessions of many lengths in one pass, over a cache in which whatever is not theirs is not a number."""
    shape, blocks, shared_by = LayerShape(kv_heads, size, size), 9000 // block_size, heads // kv_heads
    assert chunk_height(heads, shape, block_size, dtype, hopper) == HEIGHTS[size] // shared_by
    generator = torch.Generator(hopper).manual_seed(heads)
    store = KvStore({0: shape}, (blocks + 1) * block_size, dtype=dtype, device=hopper)
    pool = BlockPool(blocks, block_size)
    kv = store.layers[0]
    kv.keys.fill_(float("nan"))
    kv.values.fill_(float("nan"))
    feeds = []
    for cached, rows in ((0, 300), (127, 129), (1000, 61), (1023, 2), (1500, 77), (2047, 300), (900, 1), (37, 33)):
        sequence = KvSequence(pool, SlotMoves(), [1], cached + rows + 40, str(cached), share=False)
        sequence.cached = [0] * cached
        sequence.table.reverse()
        index = torch.arange(cached + rows)
        table = torch.tensor(sequence.table.tolist())
        slots = (table[index // block_size] * block_size + index % block_size).to(hopper)
        for cache in (kv.keys, kv.values):
            each = torch.randn(len(slots), kv_heads, size, generator=generator, device=hopper) * 2
            cache[slots] = each.to(dtype)
        feeds.append(Feed(sequence, [1] * rows, NO_TREE))
    total = sum(feed.size for feed in feeds)
    query = torch.randn(total, heads, size, generator=generator, device=hopper).to(dtype) * 2
    plans = PlanBuffer(
        hopper, rows=total, table_entries=4096, split_entries=1 << 14, block_size=block_size, spare_block=blocks,
        shared_by=shared_by,
    )  # fmt: skip
    workspace = Workspace(1 << 14, heads, size, hopper)
    found = []
    for chunks in (None, Chunks(HEIGHTS[size] // shared_by, 2), Chunks(HEIGHTS[size] // shared_by, 60)):
        tiling = Tiling(rows_per_tile(shared_by), chunks=chunks)
        layout = Layout(feeds, tiling, block_size=block_size, spare_block=blocks)
        plan = plans.fill(layout, Shape(total, layout.most_tiles, total, chunk_tiles=layout.chunk_tiles))
        output = torch.full_like(query, float("nan"))
        for _ in range(3):
            attend(query, kv, plan, workspace, size**-0.5, output)
            found.append(output.clone())
    assert not found[0].isnan().any()
    for each in found[1:]:
        assert torch.equal(each, found[0])
