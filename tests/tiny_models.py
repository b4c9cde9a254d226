"""Tiny models with random weights, each with a tokenizer, one a kind of architecture that the engine has to get right.

    python tests/tiny_models.py DIRECTORY [NAME ...]

Weights and tokenizer depend on the name and `SEED` alone. The tokenizer is a byte-level BPE (512 ids), so every text
can be encoded. The weights are large enough for greedy text to vary instead of repeating one token.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

SEED = 20240229
VOCABULARY_SIZE = 512
CONTEXT_LENGTH = 256
SLIDING_WINDOW = 12

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

TEXTS = [
    "A draft model guesses the next tokens and a larger model checks them all in one pass.",
    "The quick brown fox jumps over the lazy dog while the band plays on and on.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    "Rivers of the world: the Nile, the Amazon, the Yangtze, the Mississippi, the Danube.",
    "Häuser, naïve café, Ελληνικά, русский язык, 日本語, emoji 🙂 and 12345.67 numbers.",
    "He said: 'If the cache is full, the oldest block goes first; then try again.'",
]

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": CONTEXT_LENGTH,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def _llama() -> PreTrainedConfig:
    return LlamaConfig(**SMALL, tie_word_embeddings=True)


def _qwen2() -> PreTrainedConfig:
    # Logits wider than the tokenizer, as Qwen's are.
    return Qwen2Config(**SMALL | {"vocab_size": VOCABULARY_SIZE + 64}, tie_word_embeddings=False)


def _mistral() -> PreTrainedConfig:
    return MistralConfig(**SMALL, sliding_window=SLIDING_WINDOW)


def _gemma2() -> PreTrainedConfig:
    return Gemma2Config(
        **SMALL | {"num_hidden_layers": 4},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=SLIDING_WINDOW,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=8.0,
    )


def _gemma3() -> PreTrainedConfig:
    return Gemma3TextConfig(
        **SMALL | {"num_hidden_layers": 4},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=SLIDING_WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    )


def _gpt2() -> PreTrainedConfig:
    return GPT2Config(
        vocab_size=VOCABULARY_SIZE,
        n_embd=48,
        n_head=4,
        n_layer=3,
        n_positions=CONTEXT_LENGTH,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def _gpt_oss() -> PreTrainedConfig:
    return GptOssConfig(
        **SMALL | {"num_hidden_layers": 2},
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=SLIDING_WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


ARCHITECTURES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "mistral": _mistral,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
}
"""Grouped-query attention; biases and wide logits; sliding window; softcaps; mixed layers; learned positions; sinks."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on `TEXTS`; its first ids are the special tokens, <|endoftext|> being 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[0],
        pad_token=SPECIAL_TOKENS[0],
        model_max_length=CONTEXT_LENGTH,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(name: str, *, seed: int = SEED, layers: int | None = None) -> Any:
    """The model called `name` in `ARCHITECTURES`; another seed makes another model of the same shape."""
    config = ARCHITECTURES[name]()
    if layers is not None:
        config.num_hidden_layers = layers
    generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            scale = 0.02 if key.endswith("bias") else 0.25 if parameter.ndim > 1 else 0.1
            noise = torch.randn(parameter.shape, generator=generator) * scale
            is_scale = parameter.ndim == 1 and key.endswith("weight")
            parameter.copy_(noise + 1.0 if is_scale else noise)
    return model.eval()


def save_model(name: str, directory: Path, *, seed: int = SEED, layers: int | None = None) -> Path:
    """Write model and tokenizer to `directory` unless they are there; returns it."""
    if not (directory / "config.json").exists():
        build_tokenizer().save_pretrained(directory)
        build_model(name, seed=seed, layers=layers).save_pretrained(directory)
    return directory


def main() -> None:
    """Write the models named on the command line, or all of them, below a directory."""
    home = Path(sys.argv[1])
    for name in sys.argv[2:] or ARCHITECTURES:
        print(save_model(name, home / name))


if __name__ == "__main__":
    main()
