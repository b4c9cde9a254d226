"""Does the engine compute what the model's own code does? Asked once, at start-up, over a chain and a small tree.

Attention layers can depend on things that no flag tells: a bias by position, a mask of their own, an argument that
only their own code passes on. A model that the engine would serve wrongly is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outrider.acceptance.tree import TokenTree
from outrider.engine.attention import NAME
from outrider.errors import ModelLoadError

STEM_LENGTH = 9
TREE_PARENTS = (-1, -1, 0, 1)  # two branches of two tokens
CHECK_LENGTH = STEM_LENGTH + len(TREE_PARENTS)
"""Room that the check takes in the cache."""

TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.2, torch.float16: 0.1}
"""Largest root mean square difference of the logits, in units of their own standard deviation."""

Compute = Callable[[Sequence[int], Sequence[int], TokenTree], Tensor]
"""Runs one chain, then another that continues it with a tree after it; returns the last chain row's and the tree's."""


class SelfCheck:
    """Takes the reference from a model whose attention is still its own; `check` then compares."""

    @classmethod
    def of(cls, module: PreTrainedModel, vocabulary_size: int) -> SelfCheck | None:
        """A check of this model, or None if its attention has been replaced, and with that checked, before."""
        return None if module.config._attn_implementation == NAME else cls(module, vocabulary_size)

    def __init__(self, module: PreTrainedModel, vocabulary_size: int) -> None:
        tokens = [(7 + 31 * index) % vocabulary_size for index in range(CHECK_LENGTH)]
        self._stem = tokens[:STEM_LENGTH]
        self._tree = TokenTree(tuple(tokens[STEM_LENGTH:]), TREE_PARENTS)
        self._name = type(module).__name__
        self._tolerance = TOLERANCE[module.dtype]
        left, right = ([*self._stem, *(self._tree.tokens[node] for node in self._tree.path(leaf))] for leaf in (2, 3))
        with torch.inference_mode():
            logits = module(input_ids=torch.tensor([left, right], device=module.device), use_cache=False).logits
        rows = [(0, STEM_LENGTH - 1), (0, STEM_LENGTH), (1, STEM_LENGTH), (0, STEM_LENGTH + 1), (1, STEM_LENGTH + 1)]
        self._expected = torch.stack([logits[branch, position] for branch, position in rows]).float()

    def check(self, compute: Compute) -> None:
        """Raise ModelLoadError if `compute` gives other logits than the model's own code."""
        logits = compute(self._stem[:5], self._stem[5:], self._tree).float()
        expected = self._expected[:, : logits.shape[1]]
        difference = (logits - expected).square().mean().sqrt() / expected.std()
        if not difference <= self._tolerance:  # also true of NaN
            raise ModelLoadError(
                f"{self._name} cannot be served: over the paged cache it gives other logits than by its own code,"
                f" off by {difference:.3g} of their standard deviation, where {self._tolerance} is allowed"
            )
