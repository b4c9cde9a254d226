"""Putting the fast path together for a loaded model."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.engine.fused.borders import LONG_SPLIT, MOST_NODES, SHORT_SPLITS, rows_per_tile
from outrider.engine.fused.chunk_trial import chunk_height
from outrider.engine.fused.decoder import FusedDecoder
from outrider.engine.fused.plan import PlanBuffer
from outrider.engine.fused.product import exact_product, fastest_product
from outrider.engine.fused.runner import GRAPH_ROWS, FusedRunner
from outrider.engine.kv import KvStore
from outrider.engine.model import LoadedModel
from outrider.engine.options import EngineOptions
from outrider.engine.probe import LayerCall

SPLIT_ENTRIES = 8192
"""Splits that the workspace holds; a pass with more is attended to in slices."""

TABLE_ENTRIES = 1 << 18
"""Blocks that the sessions of one pass may look at in all, unless one alone needs more; else there are two passes."""


def build_runner(
    loaded: LoadedModel,
    calls: Mapping[int, LayerCall],
    store: KvStore,
    options: EngineOptions,
    *,
    context_length: int,
    spare_block: int,
) -> FusedRunner:
    """The fast path, with its graphs recorded. The module's weights move into it."""
    rows = max(options.max_batch_tokens, GRAPH_ROWS[-1])
    heads = loaded.module.config.num_attention_heads
    shared_by = heads // calls[0].shape.kv_heads
    entries = max(
        SPLIT_ENTRIES, (SHORT_SPLITS + context_length // LONG_SPLIT + 1) * max(rows_per_tile(shared_by), MOST_NODES)
    )
    decoder = FusedDecoder(
        loaded.module, calls, store, rows=rows, split_entries=entries, context_length=context_length,
        product=exact_product if options.exact else fastest_product,
    )  # fmt: skip
    height = chunk_height(heads, calls[0].shape, options.block_size, store.dtype, loaded.device)
    plans = PlanBuffer(
        loaded.device,
        rows=rows,
        table_entries=max(TABLE_ENTRIES, context_length // options.block_size + 2),
        split_entries=entries,
        block_size=options.block_size,
        spare_block=spare_block,
        shared_by=shared_by,
        chunk_height=height,
    )
    runner = FusedRunner(decoder, plans, loaded.draft_vocabulary)
    runner.record()
    return runner
