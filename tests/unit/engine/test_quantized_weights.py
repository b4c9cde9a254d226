"""Weights of 8 and 4 bits: the engine computes what the quantized module does, and says clearly what it cannot."""

from __future__ import annotations

import dataclasses
import json
import logging
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from torch import nn
from torchao import quantization as torchao
from torchao.utils import TorchAOBaseTensor
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.acceptance.tree import TokenTree
from outrider.engine import model as model_module
from outrider.engine import quantize as quantize_module
from outrider.engine.decoder import TransformersDecoder, make_decoder
from outrider.engine.engine import Engine, Feed
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.probe import probe_calls
from outrider.engine.quantize import check_quantization, quantized_layers, weight_bytes
from outrider.engine.runner import GeneralRunner, _why_not_fused
from outrider.engine.selfcheck import SelfCheck
from outrider.errors import ModelLoadError
from tests.conftest import TinyModel
from tests.tiny_gguf import write_gguf
from tests.tiny_models import SMALL, VOCABULARY_SIZE, build_tokenizer
from tests.unit.engine.engines import random_tokens

CUDA = torch.device("cuda:0")
CASES = [
    pytest.param("cpu", "int8", "float32", id="cpu-int8"),
    pytest.param("cpu", "int8", "bfloat16", id="cpu-int8-bf16"),
]
if torch.cuda.is_available():
    CASES += [
        pytest.param("cuda", "int8", "float32", id="cuda-int8", marks=pytest.mark.gpu),
        pytest.param("cuda", "int8", "bfloat16", id="cuda-int8-bf16", marks=pytest.mark.gpu),
        pytest.param("cuda", "int4", "bfloat16", id="cuda-int4", marks=pytest.mark.gpu),
    ]
on_each_case = pytest.mark.parametrize(("device", "quantization", "dtype"), CASES)
# In bfloat16 two tokens may be equally likely, and then either way is right.
on_each_case_of_float32 = pytest.mark.parametrize(
    ("device", "quantization", "dtype"), [case for case in CASES if case.values[2] == "float32"]
)


def options(directory: Path, quantization: str = "int8", **more: Any) -> ModelOptions:
    return ModelOptions(str(directory), quantization=quantization, **({"dtype": "float32", "device": "cpu"} | more))


def make_wide(directory: Path, *, tied: bool, **more: Any) -> Path:
    """A Llama whose layers int4 has groups for, and neither of whose widths the kernel takes without padding."""
    torch.manual_seed(5)
    sizes = {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**SMALL | sizes | more, tie_word_embeddings=tied, initializer_range=0.3)
    LlamaForCausalLM(config).save_pretrained(directory)
    build_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    return make_wide(tmp_path / "wide", tied=False)


def held_bytes(module: nn.Module) -> int:
    """What the weights take, counted by the tensors that hold them."""
    total = 0
    for parameter in module.parameters():
        inner = parameter.__tensor_flatten__()[0] if isinstance(parameter, TorchAOBaseTensor) else []
        tensors = [getattr(parameter, name) for name in inner] or [parameter]
        total += sum(tensor.numel() * tensor.itemsize for tensor in tensors)
    return total


@on_each_case_of_float32
def test_greedy_text_is_the_quantized_modules_own(wide: Path, device: str, quantization: str, dtype: str) -> None:
    prompts = [random_tokens(12, seed=seed) for seed in range(3)]
    own = load_model(options(wide, quantization, device=device, dtype=dtype)).module
    expected = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt], device=own.device)
            made = own.generate(ids, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
            expected.append(made[0, len(prompt) :].tolist())
    engine = Engine(load_model(options(wide, quantization, device=device, dtype=dtype)), EngineOptions(kv_tokens=512))
    for prompt, text in zip(prompts, expected, strict=True):
        sequence = engine.open(prompt, 64)
        new, answer = prompt, []
        while len(answer) < len(text):
            (logits,) = engine.forward([Feed(sequence, new)])
            new = [int(logits.argmax())]
            answer += new
        assert answer == text
    assert len({tuple(text) for text in expected}) == len(prompts), "texts that differ"


@on_each_case
def test_a_tree_gets_the_quantized_modules_logits(wide: Path, device: str, quantization: str, dtype: str) -> None:
    tokens = random_tokens(14)
    loaded = load_model(options(wide, quantization, device=device, dtype=dtype))
    with torch.inference_mode():
        paths = torch.tensor([tokens[:12], [*tokens[:11], tokens[13]]], device=loaded.module.device)
        own = loaded.module(paths, use_cache=False).logits[:, 10:]
    engine = Engine(loaded, EngineOptions(kv_tokens=512))
    sequence = engine.open(tokens[:11], 64)
    logits = engine.forward([Feed(sequence, tokens[:11], TokenTree((tokens[11], tokens[13]), (-1, -1)))])
    expected = torch.stack([own[0, 0], own[0, 1], own[1, 1]])
    difference = (logits - expected).float().square().mean().sqrt() / expected.float().std()
    # Rounding alone: 1e-6 and 0.04. int8 changes this model's logits by 0.05, int4 by 0.4 and more.
    assert difference < (1e-4 if dtype == "float32" else 0.1)


@on_each_case
def test_the_weights_are_smaller_by_what_was_reckoned(
    tmp_path: Path, device: str, quantization: str, dtype: str
) -> None:
    for tied in (False, True):
        directory = make_wide(tmp_path / str(tied), tied=tied)
        whole = load_model(options(directory, "none", dtype=dtype))
        small = load_model(options(directory, quantization, dtype=dtype, device=device))
        reckoned = weight_bytes(whole.module, quantization, whole.dtype)
        assert held_bytes(small.module) == reckoned
        if quantization == "int8":  # int4 pads widths as small as these to 1024
            assert reckoned < held_bytes(whole.module)
        quantized = {name for name, part in small.module.named_parameters() if isinstance(part, TorchAOBaseTensor)}
        assert len(quantized) == 3 * 7 + (not tied)
        assert ("lm_head.weight" in quantized) == (not tied)
        assert small.module.model.embed_tokens.weight.dtype == whole.dtype
        assert all(part.device.type == device for part in small.module.parameters())
        assert small.info.parameters == whole.info.parameters
        assert small.info.dtype == f"{dtype} with {quantization} weights"


def test_int8_weights_are_near_the_full_ones(wide: Path) -> None:
    tokens = torch.tensor([random_tokens(20)])
    logits = []
    for quantization in ("none", "int8"):
        with torch.inference_mode():
            logits.append(load_model(options(wide, quantization)).module(tokens).logits)
    difference = (logits[1] - logits[0]).square().mean().sqrt() / logits[0].std()
    assert 1e-5 < difference < 0.1


def test_quantized_layers_are_not_packed(wide: Path) -> None:
    loaded = load_model(options(wide))
    decoder = make_decoder(loaded.module, probe_calls(loaded.module, loaded.device), loaded.quantization)
    assert type(decoder) is TransformersDecoder
    assert len(quantized_layers(loaded.module, "int8")) == 22
    assert type(Engine(load_model(options(wide)))._run) is GeneralRunner


def test_quantized_layers_are_not_for_the_fused_path(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    loaded = load_model(options(wide))
    calls = probe_calls(loaded.module, loaded.device)
    on_gpu = dataclasses.replace(loaded, device=CUDA)
    assert _why_not_fused(on_gpu, calls, EngineOptions()) == "its weights are quantized as int8"
    reason = _why_not_fused(dataclasses.replace(on_gpu, quantization="none"), calls, EngineOptions())
    assert reason in (None, "triton is not installed")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_log_says_why_not_the_fused_path(wide: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "outrider"):
        Engine(load_model(options(wide, device="cuda")), EngineOptions(kv_tokens=512))
    assert "runs on the general path: its weights are quantized as int8" in caplog.text


def test_the_self_check_compares_with_the_quantized_module(wide: Path) -> None:
    loaded = load_model(options(wide))
    check = SelfCheck.of(loaded.module, loaded.info.vocabulary_size)
    assert check is not None
    engine = Engine(loaded, EngineOptions(kv_tokens=512))
    check.check(engine._run_check)
    full = Engine(load_model(options(wide, "none")), EngineOptions(kv_tokens=512))
    check._tolerance = 1e-5  # far below what quantizing changes
    check.check(engine._run_check)
    with pytest.raises(ModelLoadError, match="gives other logits"):
        check.check(full._run_check)


def test_first_layers_and_gguf_files(tmp_path: Path, wide: Path) -> None:
    shorter = load_model(options(wide, layers=2))
    assert len(quantized_layers(shorter.module, "int8")) == 2 * 7 + 1
    Engine(shorter, EngineOptions(kv_tokens=512))
    packed = load_model(options(write_gguf(tmp_path / "tiny.gguf")))
    assert packed.info.dtype == "float32 with int8 weights"
    Engine(packed, EngineOptions(kv_tokens=512))


def test_a_trimmed_vocabulary(tmp_path: Path) -> None:
    """The head is quantized with rows of its own; the logits are numbered as the target's."""
    ids = tuple(range(100, 400))
    directory = make_wide(tmp_path / "draft", tied=False, vocab_size=len(ids) + 1)
    (directory / "draft_vocabulary.json").write_text(json.dumps({"token_ids": ids, "target_size": VOCABULARY_SIZE}))
    loaded = load_model(options(directory))
    assert isinstance(loaded.module.lm_head.weight, TorchAOBaseTensor)
    text, rows = list(ids[5:15]), torch.arange(5, 15)[None]
    with torch.inference_mode():
        own = loaded.module(rows, use_cache=False).logits[0, -1]
    engine = Engine(loaded, EngineOptions(kv_tokens=512))
    (logits,) = engine.forward([Feed(engine.open(text, 32), text)])
    torch.testing.assert_close(logits[100:400], own[:-1], atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "gpt_oss"])
def test_other_architectures(tiny_model: TinyModel, name: str) -> None:
    loaded = load_model(options(tiny_model(name)))
    whole = load_model(options(tiny_model(name), "none"))
    assert held_bytes(loaded.module) == weight_bytes(whole.module, "int8", torch.float32) < held_bytes(whole.module)
    Engine(loaded, EngineOptions(kv_tokens=512))


def test_a_model_without_linear_layers_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(ModelLoadError, match="quantization is int8, but GPT2LMHeadModel has no linear layers"):
        load_model(options(tiny_model("gpt2")))


def test_int4_needs_cuda_and_bfloat16(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelLoadError, match=r"quantization is int4, but device is cpu: .* use int8 or none"):
        load_model(options(wide, "int4", dtype="bfloat16"))
    capability = [(7, 5)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    with pytest.raises(ModelLoadError, match=r"int4, which needs compute capability 8\.0, but cuda:0 has 7\.5"):
        check_quantization("int4", torch.bfloat16, CUDA)
    capability[0] = (9, 0)
    with pytest.raises(ModelLoadError, match="int4, which needs dtype bfloat16, but dtype is float16"):
        check_quantization("int4", torch.float16, CUDA)
    check_quantization("int4", torch.bfloat16, CUDA)


def test_int4_weights_are_as_small_as_was_reckoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes alone, on the meta device: torchao's own packing, of widths that need padding and of ones that do not."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    for hidden, vocabulary in ((96, 515), (1024, 2048)):
        sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "vocab_size": vocabulary}
        with torch.device("meta"):
            module = LlamaForCausalLM(LlamaConfig(**SMALL | sizes, tie_word_embeddings=False)).to(torch.bfloat16)
        whole, reckoned = held_bytes(module), weight_bytes(module, "int4", torch.bfloat16)
        assert quantize_module.quantize(module, "int4", torch.device("meta")) == 22
        assert held_bytes(module) == reckoned
        if hidden == 1024:
            assert reckoned < 0.45 * whole  # the embedding stays


def test_int4_leaves_out_layers_that_it_has_no_groups_for(tiny_model: TinyModel, wide: Path) -> None:
    """Of the tiny Llama's layers only the one with 96 inputs fits: the others have 48."""
    module = load_model(options(tiny_model("llama"), "none")).module
    assert {layer.in_features for layer in quantized_layers(module, "int4")} == {96}
    assert len(quantized_layers(load_model(options(wide, "none")).module, "int4")) == 22
    for layer in module.model.layers:
        layer.mlp.down_proj = nn.Linear(48, 48)
    with pytest.raises(ModelLoadError, match="has no linear layers of a multiple of 32 inputs"):
        quantized_layers(module, "int4")


def test_a_quantization_that_nobody_knows(wide: Path) -> None:
    with pytest.raises(ModelLoadError, match="quantization 'int3' is not supported; use none, int8 or int4"):
        load_model(options(wide, "int3"))


def test_a_library_that_is_not_there(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        assert name == "torchao"
        return None

    monkeypatch.setattr(quantize_module, "find_spec", find_spec)
    with pytest.raises(
        ModelLoadError, match=r"quantization is int8, which needs torchao; install outrider\[quantized\]"
    ):
        load_model(options(wide))
    load_model(options(wide, "none"))


def test_weights_that_are_quantized_already(wide: Path) -> None:
    config = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq", "bits": 4}}))
    with pytest.raises(ModelLoadError, match="quantization is int8, but the weights of wide are quantized already"):
        load_model(options(wide))


def test_a_failure_of_the_library_names_the_setting(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise NotImplementedError("no kernel")

    monkeypatch.setattr(torchao, "quantize_", fail)
    with pytest.raises(ModelLoadError, match=r"quantization is int8, but .* \[96, 96\] as float32 on cpu: no kernel"):
        load_model(options(wide))


def test_a_gpu_needs_room_for_the_quantized_weights_alone(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_model(options(wide, "none")).module
    full, small = (weight_bytes(module, name, torch.float32) for name in ("none", "int8"))
    monkeypatch.setattr(model_module, "free_bytes", lambda device: small)
    model_module._check_memory(module, "int8", torch.float32, CUDA)
    with pytest.raises(ModelLoadError, match="the weights need"):  # a CPU holds them in full before
        model_module._check_memory(module, "int8", torch.float32, torch.device("cpu"))
    monkeypatch.setattr(model_module, "free_bytes", lambda device: small - 1)
    with pytest.raises(ModelLoadError, match=r"as torch\.float32 with int8 weights, but cuda:0"):
        model_module._check_memory(module, "int8", torch.float32, CUDA)
    assert small < 0.6 * full


def test_torchs_settings_are_left_alone(wide: Path) -> None:
    before = inductor.save_config_portable()
    load_model(options(wide))
    assert inductor.save_config_portable() == before
