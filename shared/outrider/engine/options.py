"""What to load and how much memory to give it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, and how it is held."""

    model: str  # a Hugging Face hub id, a directory, or a .gguf file
    dtype: str = "auto"  # auto: float32 on a CPU, the checkpoint's own on a GPU
    device: str = "auto"  # auto: cuda if there is one, else cpu
    layers: int | None = None  # keep only the first decoder layers: an early-exit draft
    revision: str | None = None  # of a hub model
    trust_remote_code: bool = False
    quantization: str = "none"  # none, int8 or int4: the weights of linear layers, held so by torchao


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine uses its device."""

    kv_tokens: int | None = None  # room for so many tokens; None: by memory_fraction
    memory_fraction: float = 0.85  # of the device memory left beside the weights
    block_size: int = 16  # tokens a block
    max_batch_tokens: int = 2048  # most tokens one forward pass takes
    prefix_cache: bool = True
    fused: bool = True  # on a GPU, the fast path for the families that it knows
    exact: bool = True  # there: the same bits for a token however it is computed, at the price of a slower prefill
