"""The engine: a model, its KV cache, and forward passes over the sessions that are ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.blocks import BlockPool
from outrider.engine.drawn import Drawn, Guessed
from outrider.engine.kernels import CONTEXT_STEP
from outrider.engine.kv import KvStore, LayerShape, SlotMoves
from outrider.engine.memory import GIB, default_kv_bytes
from outrider.engine.model import LoadedModel
from outrider.engine.options import EngineOptions
from outrider.engine.probe import LayerCall, probe_calls
from outrider.engine.runner import Chains, DrawingChains, Grown, Growth, Runner, Stem, make_runner
from outrider.engine.selfcheck import CHECK_LENGTH, SelfCheck
from outrider.engine.sequence import NO_TREE, KvSequence
from outrider.errors import InvalidArgument, ModelLoadError, ResourceExhausted
from outrider.sampling.state import SamplingState

__all__ = ["Engine", "Feed"]


class Engine:
    """Runs one model on one device. All methods are called on one thread."""

    def __init__(self, loaded: LoadedModel, options: EngineOptions | None = None) -> None:
        """Take over `loaded`, whose attention is replaced. Raises ModelLoadError if the model cannot be served."""
        self.options = options or EngineOptions()
        self.device = loaded.device
        self.claim_thread()
        self._trimmed = trimmed = loaded.draft_vocabulary
        check = SelfCheck.of(loaded.module, len(trimmed) if trimmed else loaded.info.vocabulary_size)
        calls = probe_calls(loaded.module, self.device)
        self._store, self._pool = self._make_cache({layer: call.shape for layer, call in calls.items()}, loaded.dtype)
        self._moves = SlotMoves()
        context_length = min(loaded.info.context_length, self.capacity_tokens)
        self.info = dataclasses.replace(loaded.info, context_length=context_length)
        self._run = self._make_runner(loaded, calls, context_length)
        if check is not None and context_length >= CHECK_LENGTH:
            check.check(self._run_check)

    def claim_thread(self) -> None:
        """Make the engine's device that of the calling thread: kernels are launched on a thread's own device."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def check_device(self) -> None:
        """Raise torch.AcceleratorError if nothing works on the device in this process any more: it has to go down."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def takes_drawn(self) -> bool:
        """True if passes can run tokens that the host does not know yet."""
        return self._run.takes_drawn

    @property
    def computes_apart(self) -> bool:
        """True if `forward` returns while the device still computes: nothing waits until the logits are read."""
        return self.device.type == "cuda"

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

    def forward(self, feeds: Sequence[Feed], drawn: Drawn | None = None) -> Tensor:
        """Compute the feeds in one pass and return logits [R, W].

        Rows in order: per feed with `want_logits` its last chain token, then its tree's new nodes. W is at least the
        vocabulary size; ids beyond that are padding. The chains join their sequences' `cached`; the trees stay in
        flight until `align`. Raises ResourceExhausted, and changes no sequence, if the device has no room to compute.
        `drawn`: what negative ids refer to; whoever knows the ids replaces the trees in flight. A feed that stands `at`
        some place changes no sequence.
        """
        total = 0
        for feed in feeds:
            count = feed.size
            assert count
            assert feed.continues, "align before the next pass, or grow the tree"
            feed.sequence.check_room(count, feed.at)
            total += count
        assert 0 < total <= self.options.max_batch_tokens
        try:
            return self._advance(feeds, drawn)
        except torch.OutOfMemoryError as error:
            raise ResourceExhausted(f"the device ran out of memory over {total} tokens: {error}") from error

    @torch.inference_mode()
    def prepare_chains(self) -> None:
        """Get ready for `chains`, `grow` and `rank`, for an engine that drafts."""
        self._run.prepare_chains()

    @torch.inference_mode()
    def settle(self, drawn: Tensor, rounds: Sequence[Guessed]) -> Drawn:
        """What the target's draws, `drawn` [R] on the device, make of the rounds: see `outrider.engine.drawn.settled`.

        The host is not waited for. Only where passes take what is drawn; every round is one of the rule match.
        """
        return self._run.settle(drawn, rounds)

    @torch.inference_mode()
    def chains(
        self,
        stems: Sequence[Stem],
        states: Sequence[SamplingState],
        logits: Tensor,
        steps: int,
        beside: int,
        backs: Tensor | None = None,
    ) -> DrawingChains | None:
        """Begin to draw `steps` tokens after each stem, one after another, the first from its row of `logits` [S, W].

        At most `beside` of the next likeliest are named beside each. The states are plain (see
        `outrider.sampling.plain`); all that a stem has is in the cache, or will be when it is needed. The KV of all
        drawn tokens but the last is written, as far as there is room; that they join `cached` is for the caller to say,
        once it knows that they are usable. None where the host has to take every step.
        """
        return self._run.chains(stems, states, logits, steps, beside, backs)

    @torch.inference_mode()
    def grow(self, growths: Sequence[Growth], steps: int, *, more: bool = False) -> Grown | None:
        """Draw `steps` tokens after each branch, one after another, all branches of all growths side by side.

        The states are plain. All tokens but the last drawn join the trees in flight, or the cache's chain; what is
        drawn where nothing can be is some token. With `more` the last ones join them too, and what follows these is
        being drawn when this returns. None where the host has to take every step.
        """
        for growth in growths:
            growth.sequence.check_room((steps + more) * len(growth.newest))
        self._store.apply(self._moves)
        found = self._run.grow(growths, steps, more=more)
        if found is None:
            return None
        start, drawn = 0, found.chains.tokens if more else found.chains.tokens[:-1]
        for growth in growths:
            stop = start + len(growth.newest)
            rows = [growth.newest, *(tokens[start:stop] for tokens in drawn)]
            if growth.joins:
                growth.sequence.extend(list(chain.from_iterable(rows)), NO_TREE)
            else:
                growth.sequence.extend((), growth.grown(rows))
            start = stop
        return found

    @torch.inference_mode()
    def rank(
        self, logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]
    ) -> Chains | None:
        """Draw a token from each row of `logits` [R, W], and name the next likeliest: one step of R rows.

        The states are plain. Each state's rows are those of the tokens at its `positions`. Changes no sequence. None
        where there are no kernels for it.
        """
        return self._run.rank(logits, states, positions)

    @torch.inference_mode()
    def _advance(self, feeds: Sequence[Feed], drawn: Drawn | None = None) -> Tensor:
        self._store.apply(self._moves)
        logits = self._run(feeds, drawn)
        for feed in feeds:
            if feed.at is None:
                feed.sequence.extend(feed.tokens, feed.tree)
        return logits

    def _make_runner(self, loaded: LoadedModel, calls: Mapping[int, LayerCall], context_length: int) -> Runner:
        """Raises ModelLoadError if the memory that the KV cache left is too little to compute in."""
        try:
            return make_runner(
                loaded,
                calls,
                self._store,
                self.options,
                context_length=context_length,
                spare_block=self._pool.num_blocks,
            )
        except torch.OutOfMemoryError as error:
            options = self.options
            raise ModelLoadError(
                f"beside the weights and a KV cache of {self.capacity_tokens} tokens, {self.device} has no room to"
                f" compute passes of {options.max_batch_tokens} tokens; lower memory_fraction,"
                f" {options.memory_fraction}, or max_batch_tokens: {error}"
            ) from error

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
            store = KvStore(shapes, blocks * size + max(CONTEXT_STEP, size), dtype=dtype, device=self.device)
        except (torch.OutOfMemoryError, MemoryError) as error:
            wanted = blocks * size * token_bytes / GIB
            raise ModelLoadError(f"a KV cache of {tokens} tokens takes {wanted:.1f} GiB: {error}") from error
        return store, BlockPool(blocks, size)

    def _run_check(self, first: Sequence[int], second: Sequence[int], tree: TokenTree) -> Tensor:
        """See `outrider.engine.selfcheck.Compute`; tokens and logits are numbered as the model itself does."""
        trimmed = self._trimmed
        if trimmed is not None:
            first, second, nodes = (trimmed.named(ids) for ids in (first, second, tree.tokens))
            tree = TokenTree(nodes, tree.parents)
        sequence = self.open([*first, *second], len(first) + len(second) + len(tree), salt="self-check")
        try:
            self._advance([Feed(sequence, first, want_logits=False)])
            logits = self._advance([Feed(sequence, second, tree)])
        finally:
            self.close(sequence)
        return logits if trimmed is None else logits[:, torch.tensor(trimmed.token_ids, device=self.device)]
