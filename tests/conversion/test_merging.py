"""Linears that read one tensor, merged into one product: the same numbers, and left alone where they may differ."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.conversion import merging
from tests.conversion.harness import check


class Three(nn.Module):
    """Query, key and value of different widths; the last two with `bias`."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 6, bias=bias), nn.Linear(8, 2, bias=bias)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.parts[0](x), torch.relu(self.parts[1](x)), self.parts[2](x)


@pytest.fixture(autouse=True)
def merge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MERGED", True)


def products(conversion: builder.Conversion) -> int:
    network = conversion.network
    kinds = [network.get_layer(index).type.name for index in range(network.num_layers)]
    return kinds.count("MATRIX_MULTIPLY")


@pytest.mark.parametrize("dynamic", [None, {0: {0: "n", 1: "t"}}])
def test_three_linears_are_one_product(dynamic: dict[int, dict[int, str]] | None) -> None:
    assert products(check(Three().eval(), torch.randn(2, 3, 8), dynamic=dynamic)) == 1


def test_a_linear_without_bias_stays_apart() -> None:
    assert products(check(Three(bias=False).eval(), torch.randn(2, 3, 8))) == 3


def test_patterns_of_a_precision_keep_them_apart() -> None:
    spec = builder.TensorSpec("float32", (2, 8))
    module = torch.jit.script(Three().eval())
    assert products(builder.convert(module, [spec], precision="fp16", keep_fp32=["parts.1/*"])) == 3
    assert products(builder.convert(module, [spec], precision="fp16")) == 1
