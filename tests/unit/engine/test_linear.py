"""Packed linear layers equal the layers they replace."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from outrider.engine.linear import FusedPart, PackedLinear, can_pack, fused_layer, pack_linears

pytestmark = [
    pytest.mark.skipif(not can_pack(torch.device("cpu"), torch.float32), reason="this build has no oneDNN"),
    pytest.mark.usefixtures("without_gradients"),
]


@pytest.fixture
def without_gradients() -> object:
    with torch.inference_mode():
        torch.manual_seed(0)
        yield


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj = nn.Linear(24, 32, bias=bias)
        self.k_proj = nn.Linear(24, 16, bias=bias)
        self.v_proj = nn.Linear(24, 16, bias=bias)
        self.o_proj = nn.Linear(32, 24)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.q_proj(x), self.k_proj(x), self.v_proj(x), self.o_proj(self.q_proj(x))]


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 300])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_equals_plain(rows: int, bias: bool) -> None:
    plain = nn.Linear(24, 40, bias=bias)
    packed = PackedLinear(plain.weight, plain.bias)
    x, other = torch.randn(1, rows, 24), torch.randn(1, rows, 40)
    torch.testing.assert_close(packed(x), plain(x))
    torch.testing.assert_close(packed.added(x, other), plain(x) + other)


def test_no_rows_are_no_problem() -> None:
    assert PackedLinear(torch.randn(8, 4), None)(torch.randn(1, 0, 4)).shape == (1, 0, 8)


@pytest.mark.parametrize("bias", [False, True])
def test_projections_of_one_input_are_fused(bias: bool) -> None:
    module = Attention(bias)
    inputs = [torch.randn(3, 24) for _ in range(3)]
    expected = [module(x) for x in inputs]
    pack_linears(module)
    assert isinstance(module.q_proj, FusedPart)
    assert isinstance(module.o_proj, PackedLinear)
    assert fused_layer(module.q_proj) is fused_layer(module.v_proj)
    for x, outputs in zip(inputs, expected, strict=True):
        torch.testing.assert_close(module(x), outputs)


def test_fused_parts_may_be_asked_for_in_any_order_and_again() -> None:
    module = Attention(bias=True)
    x, y = torch.randn(2, 24), torch.randn(2, 24)
    expected = [module.v_proj(x), module.q_proj(y), module.q_proj(x), module.q_proj(x), module.k_proj(y)]
    pack_linears(module)
    got = [module.v_proj(x), module.q_proj(y), module.q_proj(x), module.q_proj(x), module.k_proj(y)]
    torch.testing.assert_close(got, expected)


def test_projections_that_differ_are_packed_one_by_one() -> None:
    module = Attention(bias=False)
    module.k_proj = nn.Linear(24, 16, bias=True)
    x = torch.randn(5, 24)
    expected = module(x)
    pack_linears(module)
    assert isinstance(module.q_proj, PackedLinear)
    torch.testing.assert_close(module(x), expected)


def test_the_linear_layer_of_gpt2_is_packed() -> None:
    holder = nn.Sequential(Conv1D(40, 24))
    nn.init.normal_(holder[0].bias)
    x = torch.randn(5, 24)
    expected = holder(x)
    pack_linears(holder)
    assert isinstance(holder[0], PackedLinear)
    torch.testing.assert_close(holder(x), expected)


def test_subclasses_keep_their_own_code() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    holder = nn.Sequential(Scaled(4, 4))
    pack_linears(holder)
    assert type(holder[0]) is Scaled


def test_rows_do_not_depend_on_their_neighbours() -> None:
    layer = PackedLinear(torch.randn(96, 192), torch.randn(96))
    x, other = torch.randn(64, 192), torch.randn(64, 96)
    alone = torch.cat([layer(row) for row in x.split(1)])
    alone_added = torch.cat([layer.added(*rows) for rows in zip(x.split(1), other.split(1), strict=True)])
    for rows in (2, 3, 4, 5, 8, 13, 32, 64):
        assert torch.equal(layer(x[:rows]), alone[:rows])
        assert torch.equal(layer.added(x[:rows], other[:rows]), alone_added[:rows])
