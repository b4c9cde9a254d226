"""The ways to run a pass, behind one seam: the general path for any architecture, and the fused one for some."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from outrider.acceptance.tree import TokenTree
from outrider.engine.attention import PagedAttention
from outrider.engine.batch import Batch, Feed
from outrider.engine.decoder import Decoder, make_decoder
from outrider.engine.draft_vocabulary import TrimmedDecoder
from outrider.engine.drawn import Drawn, Guessed
from outrider.engine.kv import KvStore
from outrider.engine.model import LoadedModel
from outrider.engine.options import EngineOptions
from outrider.engine.probe import LayerCall
from outrider.engine.quantize import NONE
from outrider.engine.sequence import KvSequence
from outrider.sampling.state import SamplingState
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Chains:
    """Tokens drawn one after another; everything is [steps][rows]."""

    tokens: list[list[int]]
    scores: list[list[float]]  # not finite where nothing can be drawn
    ranked: list[list[tuple[int, ...]]]  # the token, and beside it the next likeliest, as many as there are

    def unusable(self) -> list[int]:
        """The rows in which, at some step, nothing can be drawn."""
        if all(all(map(math.isfinite, row)) for row in self.scores):
            return []
        return sorted({place for row in self.scores for place, score in enumerate(row) if not math.isfinite(score)})


class Grown(NamedTuple):
    """What branches grew by."""

    chains: Chains
    more: DrawingChains | None = None  # one step further, if that was wanted


class Stem(NamedTuple):
    """What tokens of a session are drawn after."""

    sequence: KvSequence
    length: int  # of it: where the first of them goes, or the furthest place if there is a `back`
    back: int = -1  # which of the pass's `backs` says how much less it is, see `outrider.engine.drawn.Drawn`


class DrawingChains(Protocol):
    """Chains on their way."""

    @property
    def drawn(self) -> Drawn:
        """Where their tokens will be, [steps, rows]."""

    def collected(self) -> Chains:
        """Wait for them. Called once, and before anything else is drawn by the same runner."""
        ...


@dataclass(frozen=True, slots=True)
class Growth:
    """B branches of a session's tree in flight that grow by a token a pass.

    Or, with `joins`, no tree but what is in the cache: its one branch joins that.
    """

    sequence: KvSequence
    state: SamplingState
    newest: tuple[int, ...]  # [B] their newest tokens, which have no KV yet
    parents: tuple[int, ...]  # [B] the nodes that these continue, or ROOT
    joins: bool = False

    def grown(self, rows: Sequence[Sequence[int]]) -> TokenTree:
        """The tree after passes over `rows` of B tokens each, the newest first."""
        tree, size = self.sequence.tree, len(self.newest)
        later = range(len(tree), len(tree) + (len(rows) - 1) * size)  # each continues the one of its branch before it
        return TokenTree((*tree.tokens, *chain.from_iterable(rows)), (*tree.parents, *self.parents, *later))

    def feed(self, step: int) -> Feed:
        """Of the pass after so many others; ids that are not known yet are 0."""
        size = len(self.newest)
        tree = self.grown([self.newest, *[(0,) * size] * step])
        return Feed(self.sequence, (), tree, grown=len(tree) - size)


class Runner(Protocol):
    """A model and its cache's memory."""

    takes_drawn: bool
    """Whether its passes can run tokens that the host does not know yet."""

    def __call__(self, feeds: Sequence[Feed], drawn: Drawn | None = None) -> Tensor:
        """Run the feeds, whose KV goes to their sequences' slots; logits [R, W] as `Engine.forward` returns them.

        `drawn`: what negative ids in the feeds refer to; only where it takes that.
        """
        ...

    def chains(
        self,
        stems: Sequence[Stem],
        states: Sequence[SamplingState],
        logits: Tensor,
        steps: int,
        beside: int,
        backs: Tensor | None = None,
    ) -> DrawingChains | None:
        """See `Engine.chains`; None where the host has to take every step."""
        ...

    def settle(self, drawn: Tensor, rounds: Sequence[Guessed]) -> Drawn:
        """See `Engine.settle`; only where passes take what is drawn."""
        ...

    def grow(self, growths: Sequence[Growth], steps: int, *, more: bool = False) -> Grown | None:
        """See `Engine.grow`; None where the host has to take every step."""
        ...

    def rank(
        self, logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]
    ) -> Chains | None:
        """See `Engine.rank`; None where the tensors' mathematics has to do it."""
        ...

    def prepare_chains(self) -> object:
        """Get ready for `chains`, `grow` and `rank` now, so that the first one does not have to."""
        ...


class GeneralRunner:
    """Any architecture, on any device."""

    takes_drawn = False

    def __init__(self, decoder: Decoder, store: KvStore) -> None:
        self._decoder = decoder
        self._store = store

    def __call__(self, feeds: Sequence[Feed], drawn: Drawn | None = None) -> Tensor:
        """See `Runner`."""
        assert drawn is None
        batch = Batch.of(feeds, self._store.device)
        return self._decoder(batch, PagedAttention(self._store, batch))

    def chains(
        self,
        stems: Sequence[Stem],
        states: Sequence[SamplingState],
        logits: Tensor,
        steps: int,
        beside: int,
        backs: Tensor | None = None,
    ) -> DrawingChains | None:
        """See `Runner`: the host takes every step."""
        return None

    def settle(self, drawn: Tensor, rounds: Sequence[Guessed]) -> Drawn:
        """See `Runner`."""
        raise AssertionError("no pass takes what is drawn")

    def grow(self, growths: Sequence[Growth], steps: int, *, more: bool = False) -> Grown | None:
        """See `Runner`: the host takes every step."""
        return None

    def rank(
        self, logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]
    ) -> Chains | None:
        """See `Runner`."""
        return None

    def prepare_chains(self) -> None:
        """See `Runner`: there is nothing to prepare."""


def general_runner(loaded: LoadedModel, calls: Mapping[int, LayerCall], store: KvStore) -> GeneralRunner:
    """The general path, with the linear layers that are fastest there."""
    decoder = make_decoder(loaded.module, calls, loaded.quantization)
    if loaded.draft_vocabulary is not None:
        decoder = TrimmedDecoder(decoder, loaded.draft_vocabulary, store.device)
    return GeneralRunner(decoder, store)


def make_runner(
    loaded: LoadedModel,
    calls: Mapping[int, LayerCall],
    store: KvStore,
    options: EngineOptions,
    *,
    context_length: int,
    spare_block: int,
) -> Runner:
    """The fastest way to run the model on its device; logs which, and why not the fast path."""
    reason = _why_not_fused(loaded, calls, options)
    if reason is not None:
        if loaded.device.type == "cuda":
            log.info("%s runs on the general path: %s", loaded.info.name, reason)
        return general_runner(loaded, calls, store)
    from outrider.engine.fused.build import build_runner

    log.info("%s runs on the fused path", loaded.info.name)
    return build_runner(loaded, calls, store, options, context_length=context_length, spare_block=spare_block)


FUSED_KIB = 160
"""Shared memory of a program that the fused path's kernels are made for; those from 9.0 on take more."""


def has_room(capability: tuple[int, int]) -> bool:
    """Whether a program may have so much there, by NVIDIA's table of compute capabilities (CUDA programming guide).

    8.6, 8.9 and 12.x have 99 KiB, 7.x at most 96.
    """
    return capability in ((8, 0), (8, 7)) or 9 <= capability[0] <= 11


def _why_not_fused(loaded: LoadedModel, calls: Mapping[int, LayerCall], options: EngineOptions) -> str | None:
    if loaded.device.type != "cuda":
        return "it is for CUDA devices"
    if not options.fused:
        return "the setting fused is off"
    if loaded.quantization != NONE:
        return f"its weights are quantized as {loaded.quantization}"
    if find_spec("triton") is None:
        return "triton is not installed"
    if not has_room(capability := torch.cuda.get_device_capability(loaded.device)):
        return f"its kernels take up to {FUSED_KIB} KiB of shared memory, more than compute capability {capability} has"
    from outrider.engine.fused.decoder import why_not

    return why_not(loaded.module, calls)
