"""Weights of eight or four bits, by torchao: the linear layers of a loaded model are quantized in place.

Only weights change; activations, embeddings, norms and the KV cache stay in the model's dtype. int8: one scale an
output; torch multiplies by a copy of the weight in the model's dtype, made anew in each pass. int4: one scale and one
offset for each group of inputs of an output, read as they are by the kernel that torch has on CUDA.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from outrider.errors import ModelLoadError

NONE, INT8, INT4 = "none", "int8", "int4"
NAMES = (NONE, INT8, INT4)

INT4_GROUPS = (128, 64, 32)
"""Inputs that may share a scale; the largest that divides a layer's inputs is taken."""

INT4_CAPABILITY = (8, 0)
"""Compute capability from which on torch's int4 kernel runs."""

INT4_INPUTS, INT4_OUTPUTS = 1024, 8
"""torchao pads a weight to multiples of these for that kernel."""


def check_quantization(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ModelLoadError if weights cannot be held like that here. Loads nothing."""
    if name not in NAMES:
        raise ModelLoadError(f"quantization {name!r} is not supported; use none, int8 or int4")
    if name == NONE:
        return
    if find_spec("torchao") is None:
        raise ModelLoadError(
            f"quantization is {name}, which needs torchao; install outrider[quantized] or set it to none"
        )
    if name == INT8:
        return
    if device.type != "cuda":
        raise ModelLoadError(
            f"quantization is int4, but device is {device}: torchao computes it on CUDA devices alone; use int8 or none"
        )
    if torch.cuda.get_device_capability(device) < INT4_CAPABILITY:
        raise ModelLoadError(
            f"quantization is int4, which needs compute capability 8.0, but {device}"
            f" has {'.'.join(map(str, torch.cuda.get_device_capability(device)))}; use int8 or none"
        )
    if dtype != torch.bfloat16:
        raise ModelLoadError(f"quantization is int4, which needs dtype bfloat16, but dtype is {_word(dtype)}")


def quantized_layers(module: PreTrainedModel, name: str) -> list[nn.Linear]:
    """The layers to quantize: all linear ones but a head that is tied to the embedding, and what int4 has no group for.

    Raises ModelLoadError if there are none: the setting would do nothing.
    """
    if name == NONE:
        return []
    embedding = module.get_input_embeddings().weight
    linear = [layer for layer in module.modules() if type(layer) is nn.Linear and layer.weight is not embedding]
    layers = linear if name == INT8 else [layer for layer in linear if _group(layer) is not None]
    if not layers:
        what = "linear layers" if not linear else f"linear layers of a multiple of {INT4_GROUPS[-1]} inputs"
        raise ModelLoadError(f"quantization is {name}, but {type(module).__name__} has no {what} to apply it to")
    return layers


def weight_bytes(module: PreTrainedModel, name: str, dtype: torch.dtype) -> int:
    """What the weights will take once they are quantized; those of `module` may be on the meta device."""
    whole: int = sum(parameter.numel() for parameter in module.parameters()) * dtype.itemsize
    saved: int = 0
    for layer in quantized_layers(module, name):
        saved += layer.weight.numel() * dtype.itemsize
        saved -= _int8_bytes(layer) if name == INT8 else _int4_bytes(layer)
    return whole - saved


def quantize(module: PreTrainedModel, name: str, device: torch.device) -> int:
    """Quantize the layers in place, and move each to `device` just before; how many there were.

    So no more than one of them is there in full. The rest of the module stays where it is. Raises ModelLoadError if
    torchao fails, torch.OutOfMemoryError if the device is full.
    """
    from torchao import quantization as torchao

    layers = quantized_layers(module, name)
    for layer in layers:
        try:
            torchao.quantize_(layer, _config(torchao, layer, name), device=device)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever torchao or a kernel of its raises
            raise ModelLoadError(
                f"quantization is {name}, but torchao cannot quantize a weight of {list(layer.weight.shape)} as"
                f" {_word(layer.weight.dtype)} on {device}: {error}"
            ) from error
    return len(layers)


def _config(torchao: Any, layer: nn.Linear, name: str) -> Any:
    """How torchao is to quantize a layer; its settings for torch.compile are left alone, which is not used here."""
    if name == INT8:
        return torchao.Int8WeightOnlyConfig(set_inductor_config=False)
    return torchao.Int4WeightOnlyConfig(
        group_size=_group(layer), int4_packing_format="tile_packed_to_4d", set_inductor_config=False
    )


def _group(layer: nn.Linear) -> int | None:
    return next((size for size in INT4_GROUPS if layer.in_features % size == 0), None)


def _int8_bytes(layer: nn.Linear) -> int:
    return layer.out_features * (layer.in_features + 4 + 1)  # a float32 scale and an offset of eight bits an output


def _int4_bytes(layer: nn.Linear) -> int:
    group = _group(layer)
    assert group is not None
    inputs = -(-layer.in_features // INT4_INPUTS) * INT4_INPUTS
    outputs = -(-layer.out_features // INT4_OUTPUTS) * INT4_OUTPUTS
    return outputs * inputs // 2 + outputs * (inputs // group) * 2 * torch.bfloat16.itemsize


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
