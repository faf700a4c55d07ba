"""Batch normalization folded into the convolution before it: when it is, when not, and equal
outputs either way.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from builder.conversion.convert import convert
from tests.conversion.harness import check, module_of, spec_of


def _seeded(*parts: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(*parts).eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.25, 4.0)
            if part.affine:
                part.weight.data.normal_()
                part.bias.data.normal_()
    return module.requires_grad_(False)


def _kinds(module: Any, x: torch.Tensor, precision: str = "fp32") -> list[str]:
    network = convert(
        module_of(module, [x]), [spec_of(x, {}, {})], precision=precision
    ).network
    return [
        str(network.get_layer(i).type).rpartition(".")[2]
        for i in range(network.num_layers)
    ]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 3])
def test_normalization_after_convolution_is_folded(
    bias: bool, affine: bool, groups: int
) -> None:
    module = _seeded(
        nn.Conv2d(3, 6, 3, groups=groups, bias=bias),
        nn.BatchNorm2d(6, affine=affine),
        nn.ReLU(),
    )
    x = torch.randn(2, 3, 8, 8)
    assert _kinds(module, x) == ["CONVOLUTION", "ACTIVATION"]
    check(module, x, dynamic={0: {0: "n"}})


def test_three_dimensional_convolutions_fold_as_well() -> None:
    module = _seeded(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4))
    assert _kinds(module, torch.randn(1, 2, 3, 4, 5)) == ["CONVOLUTION"]
    check(module, torch.randn(1, 2, 3, 4, 5))


def test_half_weights_are_rounded_once() -> None:
    module = _seeded(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6))
    x = torch.randn(2, 3, 8, 8)
    assert _kinds(module, x, "fp16").count("SCALE") == 0


class TwoReaders(nn.Module):
    """A convolution with another user besides the normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = _seeded(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.parts[0](x)
        return self.parts[1](y) + y


@pytest.mark.parametrize(
    "module",
    [
        TwoReaders().eval(),
        _seeded(nn.ConvTranspose2d(3, 3, 2), nn.BatchNorm2d(3)),
        _seeded(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.BatchNorm2d(3)),
        _seeded(nn.BatchNorm2d(3)),
    ],
)
def test_unfoldable_normalization_stays_a_layer(module: nn.Module) -> None:
    x = torch.randn(2, 3, 4, 4)
    assert "SCALE" in _kinds(module, x)
    check(module, x)


def test_computed_kernel_is_not_folded() -> None:
    norm = _seeded(nn.BatchNorm2d(2))

    def computed(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        return norm(torch.nn.functional.conv2d(x, kernel))

    check(computed, torch.randn(1, 2, 4, 4), torch.randn(2, 2, 1, 1))
