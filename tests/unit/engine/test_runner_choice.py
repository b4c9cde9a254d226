"""Which GPUs the fused path is for."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.probe import probe_calls
from outrider.engine.runner import _why_not_fused, has_room
from tests.conftest import TinyModel


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_gpus_of_data_centres_have_room_for_its_kernels(capability: tuple[int, int]) -> None:
    assert has_room(capability)


@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (8, 9), (12, 0)])
def test_a_small_gpu_takes_the_general_path(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    loaded = load_model(ModelOptions(str(tiny_model("llama")), dtype="float32", device="cpu"))
    calls = probe_calls(loaded.module, loaded.device)
    reason = _why_not_fused(dataclasses.replace(loaded, device=torch.device("cuda")), calls, EngineOptions())
    assert reason is not None
    assert "160 KiB of shared memory" in reason
    assert str(capability) in reason
