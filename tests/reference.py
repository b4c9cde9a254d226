"""What transformers itself answers: the reference for greedy output."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@cache
def load_reference(directory: Path, attention: str = "eager") -> tuple[Any, Any]:
    """transformers' own model, in float32 and with its own `attention`, and tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation=attention).eval()
    model = model.to(os.environ.get("OUTRIDER_TEST_DEVICE", "cpu"))
    return model, AutoTokenizer.from_pretrained(directory)


def greedy(directory: Path, prompt: Sequence[int], max_tokens: int, *, attention: str = "eager") -> list[int]:
    """The output ids of `generate` without sampling, end-of-sequence token included; asked of it once.

    Ids beyond the tokenizer's are padding of the logits, which a model with random weights may well prefer: forbidden.
    """
    return list(_greedy(directory, tuple(prompt), max_tokens, attention))


@cache
def _greedy(directory: Path, prompt: tuple[int, ...], max_tokens: int, attention: str) -> tuple[int, ...]:
    model, tokenizer = load_reference(directory, attention)
    padding = list(range(len(tokenizer), model.config.get_text_config().vocab_size))
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt], device=model.device),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64, device=model.device),
            max_new_tokens=max_tokens,
            do_sample=False,
            suppress_tokens=padding or None,
            pad_token_id=0,
        )
    return tuple(output[0, len(prompt) :].tolist())
