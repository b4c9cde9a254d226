"""What the draft learns from: the target's final states, worked out once for each text where there is room for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outrider.distill.batches import Batch, Texts, batches_once


class Teacher:
    """The target over `texts`."""

    def __init__(self, target: PreTrainedModel, texts: Texts, *, keep_gb: float, tokens_per_batch: int) -> None:
        """Reads all texts, if their states need at most `keep_gb` GB on the device; otherwise when asked for them."""
        self.texts = texts
        self.device = target.device
        self.head: Tensor = target.get_output_embeddings().weight.detach()
        self._target = target
        size, width = texts.size, self.head.shape[1]
        fits = size * width * self.head.element_size() <= keep_gb * 1e9
        self._kept = self._read(tokens_per_batch) if fits else None

    @torch.no_grad()
    def states(self, batch: Batch, where: Tensor) -> Tensor:
        """The target's states before its head [P, hidden] at P of the S * L positions."""
        if self._kept is None:
            return final_states(self._target, batch.tokens).flatten(0, 1)[where]
        return self._kept[batch.places.flatten()[where]]

    @torch.no_grad()
    def _read(self, tokens_per_batch: int) -> Tensor:
        """[size, hidden]. In an order that does not depend on training: a resumed run gets the very same states."""
        kept = torch.empty(self.texts.size, self.head.shape[1], dtype=self.head.dtype, device=self.device)
        for group in batches_once(self.texts.lengths, tokens_per_batch):
            batch = self.texts.batch(group)
            kept[batch.places[batch.attention]] = final_states(self._target, batch.tokens)[batch.attention]
        return kept


def final_states(model: Any, tokens: Tensor) -> Tensor:
    """The states before the head [S, L, hidden]. Padding stands at the end, so causal attention needs no mask."""
    hidden: Tensor = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    return hidden
