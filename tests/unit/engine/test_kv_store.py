"""Slots are moved in every layer, whether the layers share their memory, as on a GPU, or not."""

from __future__ import annotations

import pytest
import torch

from outrider.engine import kv
from outrider.engine.kv import KvStore, LayerShape, SlotMoves

SHAPES = {0: LayerShape(2, 8, 8), 1: LayerShape(2, 8, 4), 2: LayerShape(1, 8, 8), 5: LayerShape(2, 8, 8)}
SLOTS = 12
DEVICES = [("cpu", False), ("cpu", True)]
if torch.cuda.is_available():
    DEVICES.append(("cuda", True))


@pytest.mark.parametrize(("device", "stacked"), DEVICES)
def test_moves_reach_every_layer_and_nothing_else(device: str, stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "_are_stacked", lambda _: stacked)
    store = KvStore(SHAPES, SLOTS, dtype=torch.float32, device=torch.device(device))
    assert list(store.layers) == list(SHAPES)
    generator, expected = torch.Generator().manual_seed(1), {}
    for layer, shape in SHAPES.items():
        own = store.layers[layer]
        assert own.keys.shape == (SLOTS, shape.kv_heads, shape.key_size)
        assert own.values.shape == (SLOTS, shape.kv_heads, shape.value_size)
        assert own.keys.is_contiguous()
        assert own.values.is_contiguous()
        assert not own.keys.any()
        given = [torch.randn(each.shape, generator=generator) for each in (own.keys, own.values)]
        own.write(slice(0, SLOTS), given[0].to(device), given[1].to(device))
        expected[layer] = given
    moves = SlotMoves()
    moves.add([3, 5, 7], [2, 3, 11])  # 3 is read before it is written
    store.apply(moves)
    store.apply(moves)  # nothing is left
    for layer, given in expected.items():
        for found, before in zip((store.layers[layer].keys, store.layers[layer].values), given, strict=True):
            after = before.clone()
            after[[2, 3, 11]] = before[[3, 5, 7]]
            assert torch.equal(found.cpu(), after)
