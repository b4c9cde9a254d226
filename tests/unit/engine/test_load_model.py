"""Loading: what a model says of itself, and every kind that cannot be served refused in words that help."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    BloomConfig,
    JambaConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    PreTrainedConfig,
    RwkvConfig,
    T5Config,
    XLNetConfig,
)

from outrider.engine import model as model_module
from outrider.engine.engine import Engine, Feed
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.errors import ModelLoadError
from outrider.text.tokenizer import Tokenizer
from tests.conftest import TinyModel
from tests.tiny_models import CHAT_TEMPLATE, CONTEXT_LENGTH, TEXTS, VOCABULARY_SIZE
from tests.unit.engine.engines import assert_close, random_tokens, reference_model


@pytest.fixture
def copied(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """A directory with a tiny Llama that a test may spoil."""
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def edit_config(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def test_the_model_describes_itself(tiny_model: TinyModel) -> None:
    directory = tiny_model("qwen2")
    stages: list[str] = []
    info = load_model(ModelOptions(str(directory), device="cpu"), stages.append).info
    assert info.name == directory.name
    assert info.architecture == "Qwen2ForCausalLM"
    assert info.parameters == sum(parameter.numel() for parameter in reference_model(directory).parameters())
    assert (info.dtype, info.device) == ("float32", "cpu")
    assert info.context_length == CONTEXT_LENGTH
    assert info.vocabulary_size == VOCABULARY_SIZE  # the logits are wider
    assert info.eos_token_ids == (0,)
    assert len(stages) == 2


def test_models_of_one_tokenizer_have_one_fingerprint(tiny_model: TinyModel) -> None:
    infos = [load_model(ModelOptions(str(tiny_model(name)), device="cpu")).info for name in ("llama", "gpt2")]
    assert infos[0].vocabulary_fingerprint == infos[1].vocabulary_fingerprint


def test_the_tokenizer_travels_as_files(tiny_model: TinyModel) -> None:
    directory = tiny_model("llama")
    files = load_model(ModelOptions(str(directory), device="cpu")).tokenizer_files
    ours, theirs = Tokenizer.from_files(files), AutoTokenizer.from_pretrained(directory)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text).input_ids
    chat = json.loads(files["chat.json"])
    assert chat["chat_template"] == CHAT_TEMPLATE
    assert chat["eos_token"] == "<|endoftext|>"


def test_half_precision(tiny_model: TinyModel) -> None:
    loaded = load_model(ModelOptions(str(tiny_model("llama")), dtype="bfloat16", device="cpu"))
    assert loaded.info.dtype == "bfloat16"
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_the_first_layers_alone(tiny_model: TinyModel, name: str) -> None:
    directory = tiny_model(name)
    loaded = load_model(ModelOptions(str(directory), device="cpu", layers=2))
    assert loaded.info.parameters < load_model(ModelOptions(str(directory), device="cpu")).info.parameters
    own, whole = dict(loaded.module.named_parameters()), dict(reference_model(directory).named_parameters())
    assert all(torch.equal(parameter, whole[key]) for key, parameter in own.items())
    blocks = {key.split(".")[2] for key in own if key.startswith(("model.layers.", "transformer.h."))}
    assert blocks == {"0", "1"}
    assert len(getattr(loaded.module.config, "layer_types", None) or "ab") == 2


def test_an_engine_of_the_first_layers(tiny_model: TinyModel, copied: Path) -> None:
    edit_config(copied, lambda config: config.update(num_hidden_layers=2))  # what transformers makes of a shorter file
    tokens = random_tokens(20)
    engine_logits = []
    for directory, layers in ((tiny_model("llama"), 2), (copied, None)):
        loaded = load_model(ModelOptions(str(directory), device="cpu", layers=layers))
        engine = Engine(loaded, EngineOptions(kv_tokens=64))
        sequence = engine.open(tokens, 32)
        engine_logits.append(engine.forward([Feed(sequence, tokens)]))
    assert_close(*engine_logits)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ModelLoadError, match=r"there is no file .*missing\.gguf"):
        load_model(ModelOptions("/nowhere/missing.gguf"))


@pytest.mark.parametrize("path", ["/nowhere/model", "./nowhere", "a/b/c"])
def test_a_directory_that_is_not_there(path: str) -> None:
    with pytest.raises(ModelLoadError, match="there is no directory"):
        load_model(ModelOptions(path))


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no config\.json"):
        load_model(ModelOptions(str(tmp_path)))


def test_weights_that_are_not_there(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"cannot load model: .*safetensors"):
        load_model(ModelOptions(str(copied), device="cpu"))


def test_weights_that_are_cut_off(copied: Path) -> None:
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="cannot load model"):
        load_model(ModelOptions(str(copied), device="cpu"))


@pytest.mark.parametrize("change", ["left out", "of another shape"])
def test_a_weight_that_is_missing_is_not_made_up(copied: Path, change: str) -> None:
    weights = load_file(copied / "model.safetensors")
    key = "model.layers.1.mlp.up_proj.weight"
    weights |= {key: weights[key][:-1].contiguous()}
    if change == "left out":
        del weights[key]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"up_proj\.weight|size mismatch|mismatched"):
        load_model(ModelOptions(str(copied), device="cpu"))


def test_loading_is_quiet(tiny_model: TinyModel, capfd: pytest.CaptureFixture[str]) -> None:
    directory = str(tiny_model("gemma3"))  # made here if no test before wanted it, which is not quiet
    capfd.readouterr()
    load_model(ModelOptions(directory, device="cpu", layers=2))
    assert capfd.readouterr() == ("", "")


def test_a_gguf_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(ModelLoadError, match="cannot load broken"):
        load_model(ModelOptions(str(path), device="cpu"))


def test_no_tokenizer(copied: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copied / name).unlink()
    with pytest.raises(ModelLoadError):
        load_model(ModelOptions(str(copied), device="cpu"))


REFUSED: list[tuple[PreTrainedConfig, str]] = [
    (T5Config(), "t5 is an encoder-decoder"),
    (RwkvConfig(), "RwkvForCausalLM keeps a recurrent state"),
    (MambaConfig(), "mamba has layers of the kind linear_attention; only softmax attention"),
    (JambaConfig(), "jamba has layers of the kind linear_attention"),
    (Llama4TextConfig(num_hidden_layers=4), "llama4_text has layers of the kind chunked_attention"),
    (BloomConfig(), "BloomForCausalLM does not use transformers' attention interface"),
    (XLNetConfig(), "XLNetLMHeadModel does not use transformers' attention interface"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[config.model_type for config, _ in REFUSED])
def test_architectures_that_cannot_be_served(tmp_path: Path, config: PreTrainedConfig, message: str) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=message):
        load_model(ModelOptions(str(tmp_path), device="cpu"))


def test_a_model_that_is_not_causal(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    with pytest.raises(ModelLoadError, match="no causal language model"):
        load_model(ModelOptions(str(tmp_path), device="cpu"))


def test_a_model_type_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "perpetuum"}))
    with pytest.raises(ModelLoadError, match="perpetuum"):
        load_model(ModelOptions(str(tmp_path), device="cpu"))


def test_remote_code_is_not_run_unasked(copied: Path) -> None:
    code = 'raise SystemExit("remote code was run")\n'
    (copied / "configuration_own.py").write_text(code)
    (copied / "modeling_own.py").write_text(code)
    auto = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    edit_config(copied, lambda config: config.update(model_type="own", auto_map=auto))
    with pytest.raises(ModelLoadError, match="allow it with trust_remote_code"):
        load_model(ModelOptions(str(copied), device="cpu"))


def test_too_little_memory(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "free_bytes", lambda device: 1000)
    with pytest.raises(ModelLoadError, match=r"the weights need .* GiB as torch.float32, but cpu has .* GiB left"):
        load_model(ModelOptions(str(tiny_model("llama")), device="cpu"))


@pytest.mark.parametrize("layers", [0, 4, -1])
def test_layers_that_the_model_does_not_have(tiny_model: TinyModel, layers: int) -> None:
    with pytest.raises(ModelLoadError, match=f"layers is {layers}, but the model has 3"):
        load_model(ModelOptions(str(tiny_model("llama")), device="cpu", layers=layers))


def test_a_dtype_that_is_not_supported(tiny_model: TinyModel) -> None:
    with pytest.raises(ModelLoadError, match="dtype 'int8' is not supported"):
        load_model(ModelOptions(str(tiny_model("llama")), dtype="int8"))


@pytest.mark.parametrize(
    ("device", "message"), [("warp", "no kind of device"), ("meta", "not supported"), ("cuda:99", "does not exist")]
)
def test_a_device_that_is_not_there(tiny_model: TinyModel, device: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load_model(ModelOptions(str(tiny_model("llama")), device=device))


def test_a_context_ends_where_longrope_would_change_its_frequencies(tmp_path: Path, copied: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
        "long_factor": [2.0] * 6,
        "short_factor": [1.0] * 6,
    }
    edit_config(copied, lambda config: config.update(rope_parameters=rope, rope_scaling=None))
    assert load_model(ModelOptions(str(copied), device="cpu")).info.context_length == 64


def test_no_positions_no_service(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_config(copied, lambda config: config.update(max_position_embeddings=0))
    assert LlamaConfig().max_position_embeddings  # the default would hide a missing one
    with pytest.raises(ModelLoadError, match="does not say how many positions"):
        load_model(ModelOptions(str(copied), device="cpu"))
