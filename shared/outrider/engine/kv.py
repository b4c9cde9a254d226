"""The KV cache's memory: a pair of tensors a layer, addressed by slot, and the copies between slots."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer caches for a token."""

    kv_heads: int
    key_size: int
    value_size: int

    @property
    def elements(self) -> int:
        """Numbers stored for a token."""
        return self.kv_heads * (self.key_size + self.value_size)


@dataclass(frozen=True, slots=True)
class LayerKv:
    """One layer's keys [slots, kv_heads, key_size] and values [slots, kv_heads, value_size]."""

    keys: Tensor
    values: Tensor

    def write(self, slots: slice | Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value, both [tokens, kv_heads, size], at `slots`."""
        self.keys[slots] = key
        self.values[slots] = value

    def read(self, slots: slice | Tensor) -> tuple[Tensor, Tensor]:
        """The keys [kv_heads, L, key_size] and values [kv_heads, L, value_size] at `slots`."""
        if isinstance(slots, slice):
            return self.keys[slots].transpose(0, 1), self.values[slots].transpose(0, 1)
        # Several times faster than indexing, on a CPU.
        return self.keys.index_select(0, slots).transpose(0, 1), self.values.index_select(0, slots).transpose(0, 1)


class SlotMoves:
    """Copies between slots that wait for the next forward pass, to be made at once for all sessions.

    They mean what they would if each had been made when it was added.
    """

    def __init__(self) -> None:
        self._source_by_destination: dict[int, int] = {}

    def add(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy `sources` to `destinations`; all are read before any is written."""
        pending = self._source_by_destination
        origins = [pending.get(source, source) for source in sources]
        for origin, destination in zip(origins, destinations, strict=True):
            pending[destination] = origin

    def take(self) -> tuple[list[int], list[int]]:
        """The (sources, destinations) that are left to copy; forgets them."""
        moves = [(s, d) for d, s in self._source_by_destination.items() if s != d]
        self._source_by_destination.clear()
        return [source for source, _ in moves], [destination for _, destination in moves]


class KvStore:
    """Every layer's `LayerKv`, found by the layer's index. Zeroed, so that masked slots are finite.

    On a GPU the keys and values that are alike share one tensor, so that slots are moved in all of them at once.
    """

    def __init__(self, shapes: Mapping[int, LayerShape], slots: int, *, dtype: torch.dtype, device: torch.device):
        self.device = device
        self.dtype = dtype
        kinds = [(shape.kv_heads, size) for shape in shapes.values() for size in (shape.key_size, shape.value_size)]
        self._stacks = _stacks(kinds, slots, dtype, device)  # [count, slots, kv_heads, size]
        parts: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for stack in self._stacks:
            parts[stack.shape[2], stack.shape[3]] += stack.unbind()
        tensors = iter([parts[kind].pop() for kind in kinds])
        self.layers = {layer: LayerKv(next(tensors), next(tensors)) for layer in shapes}

    def apply(self, moves: SlotMoves) -> None:
        """Make the copies that wait. All slots are read before any is written."""
        sources, destinations = moves.take()
        if not sources:
            return
        indices = torch.tensor([sources, destinations])
        if self.device.type == "cuda":  # pinned, or the copy would wait for the device
            indices = indices.pin_memory().to(self.device, non_blocking=True)
        source, destination = indices
        for stack in self._stacks:
            stack.index_copy_(1, destination, stack.index_select(1, source))


def _stacks(kinds: Sequence[tuple[int, int]], slots: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """[count, slots, kv_heads, size] as many of each kind, (kv_heads, size), as there are in `kinds`."""
    if not _are_stacked(device):
        return [_zeros((1, slots, *kind), dtype, device) for kind in kinds]
    return [_zeros((count, slots, *kind), dtype, device) for kind, count in Counter(kinds).items()]


def _are_stacked(device: torch.device) -> bool:
    """False on a CPU, where a launch costs nothing, and the system may refuse at once what it gives piece by piece."""
    return device.type != "cpu"


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU out of pages that the system hands out when first written, so that size alone costs nothing."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(numpy.zeros(math.prod(shape) * dtype.itemsize, numpy.uint8)).view(dtype).view(shape)
