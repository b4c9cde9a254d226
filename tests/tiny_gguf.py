"""A tiny quantized Llama in one GGUF file, with random weights and the tokenizer of `tests.tiny_models`."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

from tests.tiny_models import CHAT_TEMPLATE, CONTEXT_LENGTH, SEED, build_tokenizer

WIDTH, FEED_FORWARD, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
BOS, EOS = "<|im_start|>", "<|im_end|>"


def write_gguf(path: Path, seed: int = SEED) -> Path:
    """Write the model to `path`; matrices in Q4_1, whose values float32 holds and bfloat16 does not."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    vocabulary_size = _add_tokenizer(writer)
    _add_weights(writer, vocabulary_size, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> int:
    fast = json.loads(build_tokenizer().backend_tokenizer.to_str())
    tokens = sorted(fast["model"]["vocab"], key=fast["model"]["vocab"].__getitem__)
    special = {token["content"] for token in fast["added_tokens"]}
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in fast["model"]["merges"]])
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(EOS))
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def _add_weights(writer: gguf.GGUFWriter, vocabulary_size: int, rng: np.random.Generator) -> None:
    head = WIDTH // HEADS
    shapes = {"token_embd.weight": (vocabulary_size, WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        block = {
            "attn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (KV_HEADS * head, WIDTH),
            "attn_v": (KV_HEADS * head, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (FEED_FORWARD, WIDTH),
            "ffn_up": (FEED_FORWARD, WIDTH),
            "ffn_down": (WIDTH, FEED_FORWARD),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    for name, shape in shapes.items():
        values = rng.normal(0, 0.3, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, 1 + values)
        else:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
