"""The engine: a model, its KV cache, and forward passes over the sessions that are ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.engine.attention import NAME, PagedAttention
from outrider.engine.batch import Batch, Feed
from outrider.engine.blocks import BlockPool
from outrider.engine.decoder import make_decoder
from outrider.engine.kernels import CONTEXT_STEP
from outrider.engine.kv import KvStore, SlotMoves
from outrider.engine.memory import default_kv_bytes
from outrider.engine.model import LoadedModel
from outrider.engine.options import EngineOptions
from outrider.engine.probe import probe_calls
from outrider.engine.sequence import KvSequence
from outrider.errors import InvalidArgument, ModelLoadError, ResourceExhausted

__all__ = ["Engine", "Feed"]


class Engine:
    """Runs one model on one device. All methods are called on one thread."""

    def __init__(self, loaded: LoadedModel, options: EngineOptions | None = None) -> None:
        """Take over `loaded`, whose attention is replaced. Raises ModelLoadError if the model cannot be served."""
        self.options = options or EngineOptions()
        self.device = loaded.device
        loaded.module.set_attn_implementation(NAME)
        layers = loaded.module.config.get_text_config().num_hidden_layers
        calls = probe_calls(loaded.module, layers, self.device)
        shapes = {layer: call.shape for layer, call in calls.items()}
        token_bytes = sum(shape.elements for shape in shapes.values()) * loaded.dtype.itemsize
        size = self.options.block_size
        blocks = self._kv_tokens(token_bytes) // size
        if blocks < 1:
            raise ModelLoadError(f"there is no memory left for a KV cache ({token_bytes} bytes a token)")
        self._decoder = make_decoder(loaded.module, calls)
        self._store = KvStore(shapes, blocks * size + CONTEXT_STEP, dtype=loaded.dtype, device=self.device)
        self._pool = BlockPool(blocks, size)
        self._moves = SlotMoves()
        context_length = min(loaded.info.context_length, self.capacity_tokens)
        self.info = dataclasses.replace(loaded.info, context_length=context_length)

    @property
    def capacity_tokens(self) -> int:
        """How many tokens the KV cache holds in all."""
        return self._pool.num_blocks * self._pool.block_size

    @property
    def available_tokens(self) -> int:
        """How many of them new sessions could reserve now."""
        return self._pool.available * self._pool.block_size

    def open(self, tokens: Sequence[int], max_length: int, salt: str = "") -> KvSequence:
        """A sequence for a session of at most `max_length` tokens, in-flight ones included, that begins with `tokens`.

        It starts with what the prefix cache knows of them, at most all but the last. Raises ResourceExhausted if the
        memory is taken, InvalidArgument if it would never be enough.
        """
        if not 0 < max_length <= self.info.context_length:
            raise InvalidArgument("max_length", max_length, f"from 1 to {self.info.context_length}")
        if not 0 < len(tokens) <= max_length:
            raise InvalidArgument("tokens", len(tokens), f"from 1 to max_length, {max_length}, many")
        return KvSequence(self._pool, self._moves, tokens, max_length, salt, share=self.options.prefix_cache)

    def close(self, sequence: KvSequence) -> None:
        """Free a sequence's memory; its full blocks stay in the prefix cache until the room is needed."""
        sequence.close()

    def forward(self, feeds: Sequence[Feed]) -> Tensor:
        """Compute the feeds in one pass and return logits [R, W].

        Rows in order: per feed with `want_logits` its last chain token, then its tree's nodes. W is at least the
        vocabulary size; ids beyond that are padding. The chains join their sequences' `cached`; the trees stay in
        flight until `align`. Raises ResourceExhausted, and changes no sequence, if the device has no room to compute.
        """
        total = sum(len(feed) for feed in feeds)
        assert 0 < total <= self.options.max_batch_tokens
        for feed in feeds:
            assert feed.tokens
            assert not feed.sequence.tree.tokens, "align before the next pass"
            feed.sequence.check_room(len(feed))
        try:
            logits = self._compute(feeds)
        except torch.OutOfMemoryError as error:
            raise ResourceExhausted(f"the device ran out of memory over {total} tokens: {error}") from error
        for feed in feeds:
            feed.sequence.extend(feed.tokens, feed.tree)
        return logits

    @torch.inference_mode()
    def _compute(self, feeds: Sequence[Feed]) -> Tensor:
        self._store.apply(self._moves)
        batch = Batch.of(feeds, self.device)
        return self._decoder(batch, PagedAttention(self._store, batch))

    def _kv_tokens(self, token_bytes: int) -> int:
        if self.options.kv_tokens is not None:
            return self.options.kv_tokens
        return default_kv_bytes(self.device, self.options.memory_fraction) // token_bytes
