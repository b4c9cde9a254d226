"""The two ways to run a model over a batch, behind one seam: transformers' own modules, or our lean Llama."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from outrider.engine.attention import Attention, running
from outrider.engine.batch import Batch
from outrider.engine.linear import can_pack, pack_linears
from outrider.engine.llama import LlamaDecoder, is_llama_like
from outrider.engine.probe import LayerCall
from outrider.engine.quantize import NONE


class Decoder(Protocol):
    """A model without its cache."""

    def __call__(self, batch: Batch, attention: Attention) -> Tensor:
        """The logits [R, W] of the batch's `logit_rows`; every layer's queries, keys and values go to `attention`."""
        ...


class TransformersDecoder:
    """Any architecture: transformers' modules, which find `attention` through the attention interface."""

    def __init__(self, module: PreTrainedModel) -> None:
        self._module = module
        self._keeps_rows = "logits_to_keep" in inspect.signature(module.forward).parameters
        module.config.pad_token_id = None  # some models search the input for it, only to warn

    def __call__(self, batch: Batch, attention: Attention) -> Tensor:
        """See `Decoder`."""
        with running(attention):
            keep = {"logits_to_keep": batch.logit_rows} if self._keeps_rows else {}
            output = self._module(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **keep)
        logits: Tensor = output.logits[0]
        return logits if self._keeps_rows else logits[batch.logit_rows]


def make_decoder(module: PreTrainedModel, calls: Mapping[int, LayerCall], quantization: str = NONE) -> Decoder:
    """The fastest decoder for the model; its linear layers are replaced where that is faster.

    Quantized ones stay as they are: packing would bring their full weights back.
    """
    if quantization != NONE or not can_pack(module.device, module.dtype):
        return TransformersDecoder(module)
    pack_linears(module)
    return LlamaDecoder(module, calls) if is_llama_like(module) else TransformersDecoder(module)
