"""Which models the engine can run, and the words to refuse the others with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from outrider.errors import ModelLoadError

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

HONOURED = frozenset({"sliding_window", "softcap", "s_aux"})
"""Arguments of the attention call that change its result and that the engine's attention takes into account."""

HARMLESS = frozenset(
    {
        "dropout", "is_causal", "position_ids", "cache_position", "use_cache", "past_key_values", "cache",
        "output_attentions", "output_hidden_states", "return_dict", "output_router_logits", "logits_to_keep",
    }
)  # fmt: skip
"""Arguments that change nothing for a causal decoder in evaluation mode."""


def check_config(config: Any) -> None:
    """Raise ModelLoadError if the configuration tells that the engine cannot run the model."""
    kind = getattr(config, "model_type", type(config).__name__)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelLoadError(f"{kind} is an encoder-decoder; only decoder-only models can be served")
    text = config.get_text_config()
    others = sorted(set(getattr(text, "layer_types", None) or ()) - LAYER_TYPES)
    if others:
        raise ModelLoadError(f"{kind} has layers of the kind {', '.join(others)}; only softmax attention can be served")


def check_model_class(module: nn.Module) -> None:
    """Raise ModelLoadError if the model's class cannot have its attention replaced."""
    name = type(module).__name__
    if getattr(module, "_is_stateful", False):
        raise ModelLoadError(f"{name} keeps a recurrent state, which cannot be rolled back; it cannot be served")
    if not getattr(module, "_supports_attention_backend", False):
        raise ModelLoadError(f"{name} does not use transformers' attention interface; it cannot be served")


def check_attention_arguments(extra: Mapping[str, Any]) -> None:
    """Raise ModelLoadError if an attention call carries something the engine's attention would ignore."""
    unknown = sorted(name for name, value in extra.items() if value is not None and name not in HONOURED | HARMLESS)
    if unknown:
        raise ModelLoadError(f"the attention needs {', '.join(unknown)}; a model with that cannot be served")
