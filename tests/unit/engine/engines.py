"""Engines over tiny models, and what transformers' own code makes of the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel, load_model
from outrider.engine.options import EngineOptions, ModelOptions
from tests.tiny_models import ARCHITECTURES, VOCABULARY_SIZE

TOLERANCE = 2e-4
"""Largest difference between logits (standard deviation 1.7 to 3.5) that float32 rounding may cause."""

on_each_architecture = pytest.mark.parametrize("name", list(ARCHITECTURES))

DEVICES = [pytest.param("cpu", id="cpu")]
if torch.cuda.is_available():
    DEVICES.append(pytest.param("cuda", id="cuda", marks=pytest.mark.gpu))

on_each_device = pytest.mark.parametrize("device", DEVICES)


def make_engine(directory: Path, device: str = "cpu", **options: Any) -> Engine:
    """An engine in float32 with room for 1024 tokens unless told otherwise."""
    return Engine(loaded_model(directory, device), EngineOptions(**{"kv_tokens": 1024, "block_size": 8} | options))


@cache
def loaded_model(directory: Path, device: str) -> LoadedModel:
    """The model in float32; engines made of it one after the other share its weights and nothing else."""
    return load_model(ModelOptions(str(directory), dtype="float32", device=device))


@cache
def reference_model(directory: Path, device: str = "cpu") -> Any:
    """transformers' own model with its own ("eager") attention."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    return model.eval().to(device)


def reference_logits(directory: Path, tokens: Sequence[int], device: str = "cpu") -> Tensor:
    """Logits [len(tokens), W] of one text, computed at once and without any cache."""
    with torch.inference_mode():
        output = reference_model(directory, device)(torch.tensor([list(tokens)], device=device), use_cache=False)
    logits: Tensor = output.logits[0]
    return logits


def random_tokens(count: int, seed: int = 0) -> list[int]:
    """Token ids that are no special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY_SIZE, (count,), generator=generator).tolist()


def assert_close(logits: Tensor, expected: Tensor) -> None:
    """Equal but for float32 rounding."""
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)
