"""A target and a draft of real sizes with random weights, for measurements in which only the cost of computing counts.

The target has the shape of Llama-3.1-8B. The draft is its first layers with its head. What the target's other layers
add to the residual stream is damped, so that both agree on a chosen part of the tokens; the rate is always measured
where it is used, and reported.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from outrider.engine.model import LoadedModel, hardware_name
from outrider.protocol.items import ModelInfo
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

SHAPE_8B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}

SHAPES = {
    "8b": SHAPE_8B,
    "tiny": SHAPE_8B
    | {
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
"""`tiny` only shows that a benchmark runs."""

DRAFT_LAYERS = 3
SEED = 0


def synthetic_model(
    layers: int, device: str = "cuda:0", *, damping: float = 1.0, shape: dict[str, Any] = SHAPE_8B
) -> Any:
    """The first `layers` layers; those after `DRAFT_LAYERS` add `damping` of what they would. Weights by SEED alone."""
    config = LlamaConfig(**shape | {"num_hidden_layers": layers})
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    module = module.to_empty(device=device)
    generator = torch.Generator(device)
    for name, parameter in module.named_parameters():
        generator.manual_seed(_name_seed(name))
        if parameter.dim() == 1:
            parameter.data.fill_(1.0)
        else:
            width = parameter.shape[1]
            parameter.data.normal_(0.0, 1.0 if "embed" in name else width**-0.5, generator=generator)
    for index, layer in enumerate(module.model.layers):
        if index >= DRAFT_LAYERS:
            layer.self_attn.o_proj.weight.data.mul_(damping)
            layer.mlp.down_proj.weight.data.mul_(damping)
    module.model.rotary_emb = type(module.model.rotary_emb)(config).to(device)
    return module.eval().requires_grad_(False)


def damp(module: Any, wanted: float) -> tuple[float, float]:
    """Damp the layers after the draft's until draft and target agree at `wanted` of the positions of a random text.

    Both draw at temperature 1 with the same noise. Returns the damping and the agreement.
    """
    layers = [layer for index, layer in enumerate(module.model.layers) if index >= DRAFT_LAYERS]
    weights = [weight for layer in layers for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight)]
    generator = torch.Generator(module.device).manual_seed(SEED)
    text = torch.randint(0, module.config.vocab_size, (1, 512), generator=generator, device=module.device)
    uniform = torch.rand(512, module.config.vocab_size, generator=generator, device=module.device)
    noise = -(-uniform.clamp_(1e-30).log()).log()
    all_layers = module.model.layers
    with torch.inference_mode():
        module.model.layers = all_layers[:DRAFT_LAYERS]
        drafted = (module(input_ids=text, use_cache=False).logits[0].float() + noise).argmax(-1)
        module.model.layers = all_layers
        low, high, now = 0.0, 1.0, 1.0
        for _ in range(9):
            middle = (low + high) / 2
            for weight in weights:
                weight.data.mul_(middle / now)
            now = middle
            chosen = (module(input_ids=text, use_cache=False).logits[0].float() + noise).argmax(-1)
            agreement = (chosen == drafted).float().mean().item()
            low, high = (middle, high) if agreement > wanted else (low, middle)
    log.info("damping %.4f: draft and target agree at %.3f of the positions", now, agreement)
    return now, agreement


def loaded(
    module: Any, device: str, fingerprint: str = "synthetic", files: dict[str, bytes] | None = None
) -> LoadedModel:
    """As `load_model` would return it."""
    parameters = sum(parameter.numel() for parameter in module.parameters())
    size = module.config.vocab_size
    info = ModelInfo(
        name=f"synthetic-{module.config.num_hidden_layers}",
        architecture=type(module).__name__,
        parameters=parameters,
        dtype="bfloat16",
        device=device,
        context_length=module.config.max_position_embeddings,
        vocabulary_fingerprint=fingerprint,
        vocabulary_size=size,
        eos_token_ids=(),
        hardware=hardware_name(torch.device(device)),
    )
    return LoadedModel(module, info, files or {}, torch.device(device), torch.bfloat16)


def _name_seed(name: str) -> int:
    return SEED + zlib.crc32(name.encode())
