"""A Llama-like target that writes some thousand texts at a time on one GPU, each in a slot of a fixed length.

`outrider distill` answers prompts through the engine that serves them. For millions of answers that is slow: here all
slots take a step together, without a scheduler, and a prompt is read token by token. Tokens are drawn by torch, so the
noise is not the one that the draft service shares with the target: such answers are for training only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class Slots:
    """S texts of at most L tokens, a step each at a time. Device tensors; the host looks at them now and then."""

    def __init__(self, model: Any, slots: int, length: int) -> None:
        """`model` is a transformers Llama on its device."""
        config = model.config
        self.device = model.device
        self.slots, self.length = slots, length
        self._layers, self._norm = model.model.layers, model.model.norm
        self._embed, self._head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._width = self._head.shape[1] // self._heads
        shape = (len(self._layers), slots, self._kv_heads, length, self._width)
        self._keys = torch.zeros(shape, dtype=self._head.dtype, device=self.device)
        self._values = torch.zeros_like(self._keys)
        positions = torch.arange(length, device=self.device)
        blank = torch.empty(1, 1, dtype=self._head.dtype, device=self.device)
        cos, sin = model.model.rotary_emb(blank, positions[None])
        self._cos, self._sin = cos[0], sin[0]  # [L, width]
        self._along, self._rows = positions, torch.arange(slots, device=self.device)
        self.text = torch.zeros(slots, length, dtype=torch.int32, device=self.device)
        self.place = torch.zeros(slots, dtype=torch.int64, device=self.device)  # the token that is read next
        self.known = torch.ones(slots, dtype=torch.int64, device=self.device)  # tokens that are not drawn
        self.temperature = torch.zeros(slots, device=self.device)

    @torch.no_grad()
    def step(self) -> None:
        """Every slot reads a token and, behind what is known, draws the next."""
        drawn = self._draw(self._forward(self.text[self._rows, self.place].long()))
        following = (self.place + 1).clamp(max=self.length - 1)
        kept = self.text[self._rows, following]
        self.text[self._rows, following] = torch.where(following < self.known, kept, drawn.int())
        self.place = following

    def first(self, ends: Sequence[int], stop: Tensor) -> Tensor:
        """Where each slot's first drawn token of `ends` stands, before `stop` [S]; L if there is none."""
        is_end = torch.zeros_like(self.text, dtype=torch.bool)
        for end in ends:
            is_end |= self.text == end
        is_end &= (self._along >= self.known[:, None]) & (self._along < stop[:, None])
        return torch.where(is_end, self._along, self.length).amin(dim=1)

    def _draw(self, logits: Tensor) -> Tensor:
        """[S] tokens by the exponential race; the likeliest where the temperature is 0."""
        race = torch.empty_like(logits).exponential_().clamp_(min=1e-20).log_()
        temperature = self.temperature[:, None]
        return torch.where(temperature > 0, logits / temperature.clamp(min=1e-3) - race, logits).argmax(dim=-1)

    def _forward(self, tokens: Tensor) -> Tensor:
        """Logits [S, vocabulary] in float32."""
        cos, sin = self._cos[self.place][:, None], self._sin[self.place][:, None]
        hidden_away = torch.where(self._along > self.place[:, None], -torch.inf, 0.0)[:, None, None]  # [S, 1, 1, L]
        x = self._embed[tokens]
        for number, layer in enumerate(self._layers):
            x = x + self._attend(number, layer.self_attn, layer.input_layernorm(x), cos, sin, hidden_away)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return functional.linear(self._norm(x), self._head).float()

    def _attend(self, number: int, attention: Any, x: Tensor, cos: Tensor, sin: Tensor, hidden_away: Tensor) -> Tensor:
        q = _rotate(attention.q_proj(x).view(self.slots, self._heads, self._width), cos, sin)
        k = _rotate(attention.k_proj(x).view(self.slots, self._kv_heads, self._width), cos, sin)
        v = attention.v_proj(x).view(self.slots, self._kv_heads, self._width)
        keys, values = self._keys[number], self._values[number]
        keys[self._rows, :, self.place] = k
        values[self._rows, :, self.place] = v
        group = self._heads // self._kv_heads
        q = q.view(self.slots, self._kv_heads, group, self._width) * self._width**-0.5
        scores = (q @ keys.transpose(2, 3)).float() + hidden_away
        out = scores.softmax(dim=-1).to(values.dtype) @ values  # [S, kv heads, group, width]
        return attention.o_proj(out.reshape(self.slots, -1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, halves as transformers pairs them."""
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-two, one], dim=-1) * sin
