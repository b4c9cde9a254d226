"""Linear layers for a CPU: weights packed once for oneDNN, and projections of the same input computed together.

Decoding reads every weight for a handful of rows, so it is bound by memory bandwidth and by the cost of a call.
PyTorch's own float32 path (MKL) loses time to both when there are 2 to 16 rows. oneDNN's packed kernels are near the
bandwidth limit, and they sum each row in the same order whatever other rows there are, so that a row's result does
not depend on its neighbours. See tests/benchmarks/cpu_forward.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of sibling layers that are given the very same input, one after the other."""

ROWS = 32
"""How many rows the packed layout is chosen for; any number from 2 on gives the one that serves all."""


class PackedLinear(nn.Module):
    """x W^T + b from packed weights; the same as `nn.Linear` of weight [out, in] and bias [out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return output

    def added(self, x: Tensor, other: Tensor) -> Tensor:
        """x W^T + b + other, for x [..., in] and other [..., out]."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, "add")
        return output


class Fused:
    """Several layers of one input as a single packed layer, whose output waits until each part was asked for."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        assert len(biases) in (0, len(layers))
        weight = torch.cat([layer.weight.detach() for layer in layers])
        self.layer = PackedLinear(weight, torch.cat(biases) if biases else None)
        self._sizes = [layer.out_features for layer in layers]
        self._input: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def part(self, index: int, x: Tensor) -> Tensor:
        """The output of the layer `index`; computes all of them when it first sees this input."""
        if self._input is not x or self._parts[index] is None:
            self._input, self._parts = x, list(self.layer(x).split(self._sizes, dim=-1))
        part = self._parts[index]
        assert part is not None
        self._parts[index] = None
        if not any(part is not None for part in self._parts):
            self._input = None
        return part


class FusedPart(nn.Module):
    """One of the layers that a `Fused` computes."""

    def __init__(self, fused: Fused, index: int, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.fused, self._index = fused, index

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.fused.part(self._index, x)


def fused_layer(part: FusedPart) -> PackedLinear:
    """The packed layer that computes `part` and its siblings at once, side by side in the order of `FUSED`."""
    return part.fused.layer


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """True if packed layers exist for this device and dtype."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return device.type == "cpu" and dtype == torch.float32 and available


def pack_linears(module: nn.Module) -> None:
    """Replace the linear layers below `module` by packed ones, in place; each weight is freed once it is packed."""
    for parent in list(module.modules()):
        for names in FUSED:
            _fuse(parent, names)
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child.weight, child.bias))
            elif type(child) is Conv1D:
                setattr(parent, name, _packed_conv1d(child))


def _packed_conv1d(layer: Any) -> PackedLinear:
    """GPT-2's own kind of linear layer, whose weight is [in, out]."""
    return PackedLinear(layer.weight.t(), layer.bias)


def _fuse(parent: nn.Module, names: Sequence[str]) -> None:
    layers = [getattr(parent, name, None) for name in names]
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    if len(linear) < len(names):
        return
    if len({(layer.in_features, layer.bias is None) for layer in linear}) > 1:
        return
    fused = Fused(linear)
    for index, (name, layer) in enumerate(zip(names, linear, strict=True)):
        setattr(parent, name, FusedPart(fused, index, layer))
