"""A model that the engine would serve wrongly is refused when the engine starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outrider.engine.attention import AttentionInterface, running
from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel, load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.support import check_attention_arguments
from outrider.errors import ModelLoadError
from tests.conftest import TinyModel
from tests.unit.engine.engines import DEVICES

OPTIONS = EngineOptions(kv_tokens=64)

pytestmark = pytest.mark.parametrize("device", DEVICES)


def fresh(tiny_model: TinyModel, device: str, dtype: str = "float32", name: str = "gpt2") -> LoadedModel:
    return load_model(ModelOptions(str(tiny_model(name)), dtype=dtype, device=device))


def attention_layers(loaded: LoadedModel) -> list[Any]:
    return [block.attn for block in loaded.module.transformer.h]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_rounding_is_no_reason_to_refuse(tiny_model: TinyModel, device: str, dtype: str, name: str) -> None:
    Engine(fresh(tiny_model, device, dtype, name), OPTIONS)


def test_attention_with_a_bias_of_its_own_is_refused(tiny_model: TinyModel, device: str) -> None:
    loaded = fresh(tiny_model, device)
    own = loaded.module.config._attn_implementation

    def bias_by_position(layer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(hidden: Tensor, *arguments: Any, **keywords: Any) -> Any:
            if layer.config._attn_implementation == own:  # what only its own attention does
                hidden = hidden * torch.linspace(0.2, 1.0, hidden.shape[1], device=hidden.device)[:, None]
            return original(hidden, *arguments, **keywords)

        return forward

    for layer in attention_layers(loaded):
        layer.forward = bias_by_position(layer, layer.forward)
    with pytest.raises(ModelLoadError, match="gives other logits than by its own code"):
        Engine(loaded, OPTIONS)


def test_a_layer_past_the_attention_interface_is_refused(tiny_model: TinyModel, device: str) -> None:
    loaded = fresh(tiny_model, device)

    def forward(hidden: Tensor, *arguments: Any, **keywords: Any) -> tuple[Tensor, None]:
        return hidden, None

    attention_layers(loaded)[1].forward = forward
    with pytest.raises(ModelLoadError, match="3 layers, of which 2 use transformers' attention interface"):
        Engine(loaded, OPTIONS)


def test_a_layer_that_attends_twice_is_refused(tiny_model: TinyModel, device: str) -> None:
    loaded = fresh(tiny_model, device)
    layers = attention_layers(loaded)
    layers[2].layer_idx = layers[1].layer_idx
    with pytest.raises(ModelLoadError, match="layer 1 attends more than once"):
        Engine(loaded, OPTIONS)


def test_an_argument_that_would_be_ignored_is_refused(device: str) -> None:
    check_attention_arguments({"dropout": 0.0, "sliding_window": 4, "position_bias": None})
    with pytest.raises(ModelLoadError, match="needs position_bias"):
        check_attention_arguments({"dropout": 0.0, "position_bias": torch.zeros(1, device=device)})


def test_outside_of_a_pass_there_is_no_attention(device: str) -> None:
    function = AttentionInterface._global_mapping["outrider_paged"]
    module = nn.Identity()
    module.layer_idx = 0
    rows = torch.zeros(1, 1, 1, 4, device=device)
    with pytest.raises(LookupError):
        function(module, rows, rows, rows, None)
    with running(lambda layer, query, key, value, scaling, extra: query * scaling):
        assert function(module, rows, rows, rows, None, scaling=2.0)[0].shape == rows.shape
