"""A lean decoder for the Llama family on a CPU.

The same mathematics as transformers' modules in about a third of the operations: with a few rows, each operation costs
more to call than to compute. Query, key and value come from one product and are rotated together; the residual is
added by the product that ends a branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, MistralForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from outrider.engine.attention import Attention
from outrider.engine.batch import Batch
from outrider.engine.linear import PackedLinear, fused_layer
from outrider.engine.probe import LayerCall


def is_llama_like(module: PreTrainedModel) -> bool:
    """True if `LlamaDecoder` computes what the module does."""
    return type(module) in (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM)


class LlamaDecoder:
    """Runs a packed Llama, Mistral or Qwen2 model; see `outrider.engine.decoder.Decoder`."""

    def __init__(self, module: PreTrainedModel, calls: Mapping[int, LayerCall]) -> None:
        """Take the layers of `module`, whose linear layers are packed already."""
        model = module.model
        self._embed: nn.Module = model.embed_tokens
        self._rotary: nn.Module = model.rotary_emb
        self._layers = [_Layer(layer, calls[layer.self_attn.layer_idx]) for layer in model.layers]
        self._norm = _Norm(model.norm)
        self._head: nn.Module = module.lm_head

    def __call__(self, batch: Batch, attention: Attention) -> Tensor:
        """See `outrider.engine.decoder.Decoder`."""
        hidden: Tensor = self._embed(batch.input_ids[0])
        cosine, sine = (table[0].unsqueeze(1) for table in self._rotary(hidden, position_ids=batch.position_ids))
        half = sine.shape[-1] // 2
        sine[..., :half].neg_()  # so that rotating half is swapping halves
        for layer in self._layers:
            hidden = layer(hidden, cosine, sine, attention)
        logits: Tensor = self._head(self._norm(hidden[batch.logit_rows]))
        return logits


class _Norm:
    """Root mean square normalisation [T, hidden] -> [T, hidden], in half the operations of PyTorch's own."""

    def __init__(self, module: Any) -> None:
        self._weight: Tensor = module.weight
        self._epsilon = torch.tensor(module.variance_epsilon)
        self._share = 1 / module.weight.numel()

    def __call__(self, hidden: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon, length, length, value=self._share).rsqrt_()
        return (hidden * scale).mul_(self._weight)


class _Layer:
    """One decoder layer, hidden [T, hidden] -> [T, hidden]."""

    def __init__(self, layer: Any, call: LayerCall) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._index: int = attention.layer_idx
        self._call = call
        self._kv_heads = call.shape.kv_heads
        self._head_size = call.shape.key_size
        self._attention_norm = _Norm(layer.input_layernorm)
        self._query_key_value = fused_layer(attention.q_proj)
        self._output: PackedLinear = attention.o_proj
        self._mlp_norm = _Norm(layer.post_attention_layernorm)
        self._gate_up = fused_layer(mlp.gate_proj)
        self._activation: nn.Module = mlp.act_fn
        self._down: PackedLinear = mlp.down_proj

    def __call__(self, hidden: Tensor, cosine: Tensor, sine: Tensor, attention: Attention) -> Tensor:
        rows = hidden.shape[0]
        heads = self._query_key_value(self._attention_norm(hidden)).view(rows, -1, self._head_size)
        rotated, value = heads[:, : -self._kv_heads], heads[:, -self._kv_heads :]
        rotated = torch.addcmul(rotated * cosine, rotated.roll(self._head_size // 2, -1), sine)
        query, key = rotated[:, : -self._kv_heads], rotated[:, -self._kv_heads :]
        attended = attention(
            self._index,
            query.transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            self._call.scaling,
            self._call.extra,
        )
        hidden = self._output.added(attended.reshape(rows, -1), hidden)
        gate, up = self._gate_up(self._mlp_norm(hidden)).chunk(2, dim=-1)
        return self._down.added(self._activation(gate) * up, hidden)
