"""Finding out how a model's layers call their attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outrider.engine.attention import NAME, running
from outrider.engine.kv import LayerShape
from outrider.engine.support import HONOURED, check_attention_arguments
from outrider.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class LayerCall:
    """How one layer calls its attention."""

    shape: LayerShape
    scaling: float
    extra: Mapping[str, Any]  # the arguments that change the result


@dataclass(slots=True)
class CallProbe:
    """Stands in for the attention over one single token, where the output is the value, and notes the calls."""

    calls: dict[int, LayerCall] = field(default_factory=dict)

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, extra: Mapping[str, Any]
    ) -> Tensor:
        """See `outrider.engine.attention.Attention`."""
        check_attention_arguments(extra)
        if layer in self.calls:
            raise ModelLoadError(f"layer {layer} attends more than once in a pass; such a model cannot be served")
        shape = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
        honoured = {name: extra[name] for name in HONOURED & extra.keys() if extra[name] is not None}
        self.calls[layer] = LayerCall(shape, scaling, honoured)
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)


def probe_calls(module: PreTrainedModel, device: torch.device) -> dict[int, LayerCall]:
    """Replace the module's attention by the running one, and find how each layer calls it by a pass over one token.

    Raises ModelLoadError unless each layer attends once, through transformers' attention interface.
    """
    module.set_attn_implementation(NAME)
    layers = module.config.get_text_config().num_hidden_layers
    probe = CallProbe()
    token = torch.zeros((1, 1), dtype=torch.int64, device=device)
    with torch.inference_mode(), running(probe):
        module(input_ids=token, position_ids=token, use_cache=False)
    if len(probe.calls) != layers:
        raise ModelLoadError(
            f"{type(module).__name__} has {layers} layers, of which {len(probe.calls)} use transformers' attention"
            " interface; it cannot be served"
        )
    return probe.calls
