"""A whole model of the Llama-like families: embedding, blocks, head, over memory that stays where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from outrider.engine.fused.block import Block, Buffers, add_norm
from outrider.engine.fused.merging import Workspace
from outrider.engine.fused.plan import Plan
from outrider.engine.fused.product import MakeProduct, Product, exact_product
from outrider.engine.fused.rotary import RotaryTables
from outrider.engine.kv import KvStore
from outrider.engine.probe import LayerCall

FAMILIES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)

STATIC_ROPE = {"default", "linear", "llama3", "yarn", "longrope"}
"""Rotary embeddings whose frequencies do not depend on the pass. (A long rope's context ends where they would.)"""


def why_not(module: PreTrainedModel, calls: Mapping[int, LayerCall]) -> str | None:
    """What keeps the model off the fast path, in a few words; None if nothing does."""
    config = module.config
    if type(module) not in FAMILIES:
        return f"{type(module).__name__} is none of {', '.join(family.__name__ for family in FAMILIES)}"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in STATIC_ROPE:
        return f"its rotary embedding is of type {kind}"
    for layer, call in calls.items():
        if call.extra:
            return f"layer {layer} attends with {', '.join(sorted(call.extra))}"
        if call.shape.key_size != call.shape.value_size or call.shape.key_size % 2:
            return f"layer {layer} has keys of {call.shape.key_size} and values of {call.shape.value_size} numbers"
    for layer in module.model.layers:
        for part in (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            if part.bias is not None:
                return "its output or MLP projections have a bias"
    return None


class FusedDecoder:
    """Runs plans. Everything it touches has a fixed address, so a run can be recorded as a CUDA graph."""

    def __init__(
        self,
        module: Any,
        calls: Mapping[int, LayerCall],
        store: KvStore,
        *,
        rows: int,
        split_entries: int,
        context_length: int,
        product: MakeProduct = exact_product,
    ) -> None:
        """Take the layers of `module`. `rows`: most rows of a pass; `split_entries`: see `Workspace`."""
        model, config = module.model, module.config
        self.embedding: Tensor = model.embed_tokens.weight.detach()
        rotary = RotaryTables.of(model.rotary_emb, context_length, self.embedding.device)
        self._blocks = [
            Block(layer, calls[index], store.layers[index], rotary, product) for index, layer in enumerate(model.layers)
        ]
        self._norm = add_norm(model.norm)
        # Whatever its shape (a draft's vocabulary may be small): nobody sums the parts of logits.
        self._head: Product = product(module.lm_head.weight.detach(), whole=True)
        heads: int = config.num_attention_heads
        first = calls[0].shape
        like, hidden, size = self.embedding, config.hidden_size, first.key_size
        bytes_ = rows * max(block.widest for block in self._blocks)
        self._buffers = Buffers(
            residual=like.new_empty(rows, hidden),
            normed=like.new_empty(rows, hidden),
            query=like.new_empty(rows, heads, size),
            attended=like.new_empty(rows, heads, size),
            activated=like.new_empty(rows, config.intermediate_size),
            projected=like.new_empty(bytes_, dtype=torch.uint8),
            branch=like.new_empty(bytes_, dtype=torch.uint8),
            workspace=Workspace(split_entries, heads, size, like.device),
        )

    def run(self, plan: Plan, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """The logits [P, R, W] of the plan's `logit_rows`, in the memory `logits` (bytes). `ids`: others than its."""
        rows = plan.shape.rows
        torch.index_select(self.embedding, 0, plan.ids if ids is None else ids, out=self._buffers.residual[:rows])
        branch: Tensor | None = None
        for block in self._blocks:
            branch = block(branch, plan, self._buffers)
        normed = self._buffers.normed[: plan.shape.logit_rows]
        if not len(normed):
            return logits[:0]
        self._norm(self._buffers.residual[:rows], branch, normed, plan.logit_rows)
        return self._head(normed, logits)

    @property
    def logit_bytes(self) -> int:
        """Memory a row of logits takes."""
        return self._head.row_bytes
