"""The report for modules with their own fake quantization: 8 bits only if TensorRT has a kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from builder.lowering import lower
from builder.quantization import quantize, trained, trained_scales
from builder.quantization.results import OWN

SCALES, ZEROS = (
    torch.tensor([0.01, 0.02, 0.03, 0.04]),
    torch.zeros(4, dtype=torch.int32),
)


class Rounded(nn.Module):
    """A linear layer of four inputs and outputs; `activation` and `weight` select the rounding of
    its operands.
    """

    def __init__(self, activation: str, weight: str) -> None:
        super().__init__()
        self.activation, self.kind, self.linear = activation, weight, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(
            _rounded(x, self.activation), _rounded(self.linear.weight, self.kind)
        )


def _rounded(x: Tensor, kind: str) -> Tensor:
    if kind == "none":
        return x
    if kind.startswith("axis"):
        return torch.fake_quantize_per_channel_affine(
            x, SCALES, ZEROS, int(kind[4:]), -128, 127
        )
    if kind == "zeros":
        return torch.fake_quantize_per_channel_affine(
            x, SCALES, ZEROS + 3, 0, -128, 127
        )
    zero, low, high = map(int, kind.split())
    return torch.fake_quantize_per_tensor_affine(x, 0.05, zero, low, high)


CASES = {
    ("0 -128 127", "axis0"): OWN,
    ("128 0 255", "0 -127 127"): OWN,
    ("0 0 127", "axis0"): OWN,
    ("0 0 255", "axis0"): trained.RANGE,
    ("7 -128 127", "axis0"): trained.RANGE,
    ("0 -128 127", "zeros"): trained.RANGE,
    ("axis1", "axis0"): trained.CHANNELS,
    ("0 -128 127", "axis1"): trained.AXIS,
    ("0 -128 127", "none"): "the module does not quantize its operands",
}


@pytest.mark.parametrize(("activation", "weight"), CASES)
def test_product_is_reported_as_quantized_only_with_a_tensorrt_kernel(
    activation: str, weight: str
) -> None:
    module = torch.jit.trace(Rounded(activation, weight).eval(), torch.randn(2, 4))
    scales = trained_scales(lower(module))
    assert scales is not None
    (layer,) = scales.layers
    assert layer.reason == CASES[activation, weight]
    assert layer.quantized is (layer.reason == OWN)


@pytest.mark.parametrize("activation", ["0 0 255", "axis1"])
def test_calibration_does_not_round_operand_beside_a_float_operand(
    activation: str,
) -> None:
    lowered = lower(
        torch.jit.trace(Rounded(activation, "none").eval(), torch.randn(2, 4))
    )
    quantized = quantize(lowered, [[torch.randn(2, 4)]])
    assert not quantized.layers[0].quantized and quantized.layers[0].reason in (
        trained.RANGE,
        trained.CHANNELS,
    )
    assert quantized.lowered.text.count("fake_quantize") == lowered.text.count(
        "fake_quantize"
    )
