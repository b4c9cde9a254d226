"""Whether the attention of chunks is there, and has the bits of the other: tried when a model is loaded."""

from __future__ import annotations

import torch

from outrider.engine.batch import Feed
from outrider.engine.blocks import BlockPool
from outrider.engine.fused.attend import attend
from outrider.engine.fused.borders import TALL_HEIGHT, rows_per_tile, tile_height
from outrider.engine.fused.chunk_attention import HEIGHTS
from outrider.engine.fused.hopper import can_use
from outrider.engine.fused.layout import Chunks, Layout, Tiling
from outrider.engine.fused.merging import Workspace
from outrider.engine.fused.plan import PlanBuffer, Shape
from outrider.engine.kv import KvStore, LayerKv, LayerShape, SlotMoves
from outrider.engine.sequence import NO_TREE, KvSequence

CACHED, ROWS = 1500, 70
"""Of the session it is tried on: its rows see short splits and long ones, and are in several tiles."""


def chunk_height(heads: int, shape: LayerShape, block_size: int, dtype: torch.dtype, device: torch.device) -> int:
    """Positions in a tile of `outrider.engine.fused.chunk_attention`; 0 if it is not there for such a model."""
    shared_by = heads // shape.kv_heads
    height = HEIGHTS.get(shape.key_size, 0) // shared_by
    if not height or tile_height(shared_by) > TALL_HEIGHT or dtype not in (torch.bfloat16, torch.float16):
        return 0

    def fault() -> str:
        same = _Trial(heads, shape, block_size, dtype, device).same_bits(height)
        return "" if same else "other bits here, and not used"

    return height if can_use("attention of prompts in tall tiles", device, fault) else 0


class _Trial:
    """A session of random keys, and some rows of it."""

    def __init__(
        self, heads: int, shape: LayerShape, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        blocks = -(-(CACHED + ROWS) // block_size)
        generator = torch.Generator(device).manual_seed(0)
        store = KvStore({0: shape}, (blocks + 1) * block_size, dtype=dtype, device=device)
        self._kv: LayerKv = store.layers[0]
        self._kv.keys.normal_(generator=generator)
        self._kv.values.normal_(generator=generator)
        query = torch.randn(ROWS, heads, shape.key_size, generator=generator, device=device)
        self._query = query.to(dtype)
        sequence = KvSequence(BlockPool(blocks, block_size), SlotMoves(), [1], CACHED + ROWS, "trial", share=False)
        sequence.cached = [0] * CACHED
        self._feed = Feed(sequence, [1] * ROWS, NO_TREE)
        self._shared_by = heads // shape.kv_heads
        self._plans = PlanBuffer(
            device, rows=ROWS, table_entries=blocks + 1, split_entries=16 * ROWS, block_size=block_size,
            spare_block=blocks, shared_by=self._shared_by,
        )  # fmt: skip
        self._workspace = Workspace(16 * ROWS, heads, shape.key_size, device)
        self._spare = blocks
        self._block_size = block_size

    def same_bits(self, height: int) -> bool:
        """Compare tiles of `height` positions with the others."""
        return torch.equal(self._attended(Chunks(height, height)), self._attended(None))

    def _attended(self, chunks: Chunks | None) -> torch.Tensor:
        tiling = Tiling(rows_per_tile(self._shared_by), chunks=chunks)
        layout = Layout([self._feed], tiling, block_size=self._block_size, spare_block=self._spare)
        shape = Shape(ROWS, layout.most_tiles, ROWS, chunk_tiles=layout.chunk_tiles)
        output = torch.full_like(self._query, float("nan"))
        plan = self._plans.fill(layout, shape)
        attend(self._query, self._kv, plan, self._workspace, self._query.shape[-1] ** -0.5, output)
        return output
