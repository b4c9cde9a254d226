"""Finding out what a model caches and checking that the engine computes what the model's own code does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from outrider.engine.attention import running
from outrider.engine.kv import LayerShape
from outrider.engine.support import check_attention_arguments
from outrider.errors import ModelLoadError


@dataclass(slots=True)
class ShapeProbe:
    """Stands in for the attention over one single token, where the output is the value, and notes the shapes."""

    shapes: dict[nn.Module, LayerShape] = field(default_factory=dict)

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float, extra: dict[str, Any]
    ) -> Tensor:
        """See `outrider.engine.attention.Attention`."""
        check_attention_arguments(module, extra)
        if module in self.shapes:
            raise ModelLoadError(f"{type(module).__name__} attends more than once in a pass; it cannot be served")
        self.shapes[module] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)


def probe_shapes(module: nn.Module, layers: int, device: torch.device) -> dict[nn.Module, LayerShape]:
    """What each attention layer caches for a token, found by a pass over one token.

    Raises ModelLoadError unless each of the `layers` layers attends once, through the attention interface.
    """
    probe = ShapeProbe()
    token = torch.zeros((1, 1), dtype=torch.int64, device=device)
    with torch.inference_mode(), running(probe):
        module(input_ids=token, position_ids=token, use_cache=False)
    if len(probe.shapes) != layers:
        raise ModelLoadError(
            f"{type(module).__name__} has {layers} layers, of which {len(probe.shapes)} use transformers' attention"
            " interface; it cannot be served"
        )
    return probe.shapes
