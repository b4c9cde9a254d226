"""The engine: a model, its KV cache, and forward passes over the sessions that are ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.acceptance.tree import TokenTree
from outrider.engine.attention import PagedAttention
from outrider.engine.batch import Batch, Feed
from outrider.engine.blocks import BlockPool
from outrider.engine.decoder import Decoder, make_decoder
from outrider.engine.draft_vocabulary import TrimmedDecoder
from outrider.engine.kernels import CONTEXT_STEP
from outrider.engine.kv import KvStore, LayerShape, SlotMoves
from outrider.engine.memory import GIB, default_kv_bytes
from outrider.engine.model import LoadedModel
from outrider.engine.options import EngineOptions
from outrider.engine.probe import probe_calls
from outrider.engine.selfcheck import CHECK_LENGTH, SelfCheck
from outrider.engine.sequence import KvSequence
from outrider.errors import InvalidArgument, ModelLoadError, ResourceExhausted

__all__ = ["Engine", "Feed"]


class Engine:
    """Runs one model on one device. All methods are called on one thread."""

    def __init__(self, loaded: LoadedModel, options: EngineOptions | None = None) -> None:
        """Take over `loaded`, whose attention is replaced. Raises ModelLoadError if the model cannot be served."""
        self.options = options or EngineOptions()
        self.device = loaded.device
        trimmed = loaded.draft_vocabulary
        check = SelfCheck.of(loaded.module, len(trimmed) if trimmed else loaded.info.vocabulary_size)
        calls = probe_calls(loaded.module, self.device)
        self._decoder: Decoder = make_decoder(loaded.module, calls)
        self._store, self._pool = self._make_cache({layer: call.shape for layer, call in calls.items()}, loaded.dtype)
        self._moves = SlotMoves()
        context_length = min(loaded.info.context_length, self.capacity_tokens)
        self.info = dataclasses.replace(loaded.info, context_length=context_length)
        if check is not None and context_length >= CHECK_LENGTH:
            check.check(self._run_check)
        if trimmed is not None:
            self._decoder = TrimmedDecoder(self._decoder, trimmed, self.device)

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

        Rows in order: per feed with `want_logits` its last chain token, then its tree's new nodes. W is at least the
        vocabulary size; ids beyond that are padding. The chains join their sequences' `cached`; the trees stay in
        flight until `align`. Raises ResourceExhausted, and changes no sequence, if the device has no room to compute.
        """
        total = sum(len(feed) for feed in feeds)
        assert 0 < total <= self.options.max_batch_tokens
        for feed in feeds:
            assert len(feed)
            assert feed.sequence.tree == feed.tree.truncated(feed.grown), "align before the next pass, or grow the tree"
            assert not (feed.tokens and feed.grown)
            feed.sequence.check_room(len(feed))
        try:
            return self._advance(feeds)
        except torch.OutOfMemoryError as error:
            raise ResourceExhausted(f"the device ran out of memory over {total} tokens: {error}") from error

    @torch.inference_mode()
    def _advance(self, feeds: Sequence[Feed]) -> Tensor:
        self._store.apply(self._moves)
        batch = Batch.of(feeds, self.device)
        logits = self._decoder(batch, PagedAttention(self._store, batch))
        for feed in feeds:
            feed.sequence.extend(feed.tokens, feed.tree)
        return logits

    def _make_cache(self, shapes: Mapping[int, LayerShape], dtype: torch.dtype) -> tuple[KvStore, BlockPool]:
        """As many blocks as the options or the memory allow. Raises ModelLoadError if that is none."""
        token_bytes = sum(shape.elements for shape in shapes.values()) * dtype.itemsize
        tokens = self.options.kv_tokens
        if tokens is None:
            tokens = default_kv_bytes(self.device, self.options.memory_fraction) // token_bytes
        size = self.options.block_size
        blocks = tokens // size
        if blocks < 1:
            raise ModelLoadError(f"there is no room for a KV cache of a single block ({size} x {token_bytes} bytes)")
        try:
            store = KvStore(shapes, blocks * size + CONTEXT_STEP, dtype=dtype, device=self.device)
        except (torch.OutOfMemoryError, MemoryError) as error:
            wanted = blocks * size * token_bytes / GIB
            raise ModelLoadError(f"a KV cache of {tokens} tokens takes {wanted:.1f} GiB: {error}") from error
        return store, BlockPool(blocks, size)

    def _run_check(self, first: Sequence[int], second: Sequence[int], tree: TokenTree) -> Tensor:
        sequence = self.open([*first, *second], len(first) + len(second) + len(tree), salt="self-check")
        try:
            self._advance([Feed(sequence, first, want_logits=False)])
            return self._advance([Feed(sequence, second, tree)])
        finally:
            self.close(sequence)
