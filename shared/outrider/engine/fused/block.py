"""One decoder layer of the Llama-like families, in eight to ten kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outrider.engine.fused.attend import attend
from outrider.engine.fused.gated_product import with_gate
from outrider.engine.fused.merging import Workspace
from outrider.engine.fused.norm import AddNorm
from outrider.engine.fused.plan import Plan
from outrider.engine.fused.product import MakeProduct
from outrider.engine.fused.rotary import HeadNorm, RotaryTables, rotate_and_store
from outrider.engine.kv import LayerKv
from outrider.engine.probe import LayerCall


@dataclass(frozen=True, slots=True)
class Buffers:
    """Memory for the activations of a pass of up to R rows; layers use it one after the other."""

    residual: Tensor  # [R, hidden]
    normed: Tensor  # [R, hidden]
    query: Tensor  # [R, heads, size]
    attended: Tensor  # [R, heads, size]
    activated: Tensor  # [R, intermediate]
    projected: Tensor  # flat, for the results of products within a branch
    branch: Tensor  # flat, for the result of a branch
    workspace: Workspace


class Block:
    """A layer, with the addition of the branch before it: the sum and the normalisation are one kernel."""

    def __init__(self, layer: Any, call: LayerCall, kv: LayerKv, rotary: RotaryTables, product: MakeProduct) -> None:
        """Share the weights of `layer`."""
        attention, mlp = layer.self_attn, layer.mlp
        self._scaling = call.scaling
        self._kv = kv
        self._rotary = rotary
        self._attention_norm = add_norm(layer.input_layernorm)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self._query_key_value = product(_joined(projections))
        biases = [projection.bias for projection in projections]
        self._bias = None if biases[0] is None else torch.cat(biases)
        self._head_norm = _head_norm(attention)
        self._output = product(attention.o_proj.weight.detach())
        self._mlp_norm = add_norm(layer.post_attention_layernorm)
        self._gate_up = with_gate(product(_joined((mlp.gate_proj, mlp.up_proj))))
        self._down = product(mlp.down_proj.weight.detach())

    def __call__(self, branch: Tensor | None, plan: Plan, buffers: Buffers) -> Tensor:
        """Add `branch` [P, T, hidden] to the residual stream, run the layer; its own last branch comes back."""
        rows = plan.shape.rows
        residual, normed = buffers.residual[:rows], buffers.normed[:rows]
        query, attended = buffers.query[:rows], buffers.attended[:rows]
        self._attention_norm(residual, branch, normed)
        heads = self._query_key_value(normed, buffers.projected)
        rotate_and_store(heads, self._bias, self._head_norm, self._rotary, plan.positions, plan.slots, query, self._kv)
        attend(query, self._kv, plan, buffers.workspace, self._scaling, attended)
        branch = self._output(attended.view(rows, -1), buffers.branch)
        self._mlp_norm(residual, branch, normed)
        activated = buffers.activated[:rows]
        self._gate_up(normed, buffers.projected, activated)
        return self._down(activated, buffers.branch)

    @property
    def widest(self) -> int:
        """Bytes a row that the products need in `Buffers.projected` or `Buffers.branch`."""
        products = (self._query_key_value, self._output, self._gate_up, self._down)
        return max(product.row_bytes for product in products)


def add_norm(module: Any) -> AddNorm:
    """Of one of transformers' RMSNorm modules."""
    return AddNorm(module.weight.detach(), module.variance_epsilon)


def _joined(layers: tuple[nn.Linear, ...]) -> Tensor:
    """The weights one under the other. The layers keep theirs as parts of it, so that nothing is held twice."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    for layer, part in zip(layers, weight.split([layer.out_features for layer in layers]), strict=True):
        layer.weight = nn.Parameter(part, requires_grad=False)
    return weight


def _head_norm(attention: Any) -> HeadNorm | None:
    norm = getattr(attention, "q_norm", None)
    if norm is None:
        return None
    return HeadNorm(norm.weight.detach(), attention.k_norm.weight.detach(), norm.variance_epsilon)
