"""Fake quantization against torch: zero points, narrow ranges, one scale or one for each channel,
static or computed. Outputs are multiples of the scale: equal to a few ulp, or off by a whole step.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import builder
from builder.conversion.quantized import FP8, missing
from builder.conversion.sizes import kind_of
from builder.parity import compare
from tests.conversion.harness import check, layer_kinds, module_of

RANGES = [
    (0, -128, 127),
    (0, -127, 127),
    (3, -128, 127),
    (-5, -127, 127),
    (128, 0, 255),
    (0, 0, 15),
    (7, 0, 15),
]


@pytest.mark.parametrize(("zero", "low", "high"), RANGES)
def test_one_scale(zero: int, low: int, high: int) -> None:
    x = torch.randn(2, 3, 4, 5) * 6
    check(
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.0375, zero, low, high),
        x,
        dynamic={0: {0: "n"}},
    )
    check(
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.7, zero, low, high),
        x.half(),
        compile=False,
    )


@pytest.mark.parametrize(("zero", "low", "high"), RANGES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_for_each_channel(axis: int, zero: int, low: int, high: int) -> None:
    x = torch.randn(2, 3, 4, 5) * 6
    scale = torch.rand(x.shape[axis]) + 0.01
    zeros = torch.full((x.shape[axis],), zero, dtype=torch.int32)
    if zero:
        zeros[0] = 0
    check(
        lambda x: torch.fake_quantize_per_channel_affine(
            x, scale, zeros, axis % 4, low, high
        ),
        x,
        compile=axis == 1,
    )


@pytest.mark.parametrize(("zero", "low", "high"), RANGES)
def test_qparams_as_tensors(zero: int, low: int, high: int) -> None:
    x, scale, point = (
        torch.randn(2, 3, 4) * 6,
        torch.tensor([0.0375]),
        torch.tensor([zero], dtype=torch.int32),
    )
    check(
        lambda x: torch.fake_quantize_per_tensor_affine(x, scale, point, low, high),
        x,
        compile=False,
    )
    check(
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, low, high),
        x,
        scale,
        point,
    )


def test_ties_go_to_even() -> None:
    x = torch.arange(-8, 8) * 0.25
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -128, 127), x)
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 1, -128, 127), x)


SHIFTED = [(128, 0, 255), (5, 0, 127), (-3, -127, 120), (0, 0, 127)]
"""(zero point, quant_min, quant_max) whose range, seen from the zero point, lies within int8's."""


@pytest.mark.parametrize(("zero", "low", "high"), SHIFTED)
def test_shifted_int8_zero_point_is_quantized(zero: int, low: int, high: int) -> None:
    """Only quant_min - zero_point and quant_max - zero_point determine the values that x keeps."""
    x = torch.randn(2, 3, 4) * 6
    conversion = check(
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.0375, zero, low, high), x
    )
    kinds = layer_kinds(conversion)
    assert kinds["QUANTIZE"] == kinds["DEQUANTIZE"] == 1


class QuantizedConstant(torch.nn.Module):
    """x + an int8 constant with a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.quantize_per_tensor(
            torch.arange(6.0).reshape(2, 3), 0.5, 3, torch.qint8
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.dequantize()


def test_a_quantized_constant_has_its_values() -> None:
    check(QuantizedConstant(), torch.randn(2, 3), compile=False)


class Unsigned(torch.nn.Module):
    """The quantization that the default observers of torch choose for the output of a ReLU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 0.0375, 0, 0, 255)


def test_range_beyond_int8_is_rounded_in_float_with_warning() -> None:
    conversion = check(Unsigned(), torch.randn(2, 3).abs())
    assert not layer_kinds(conversion)["QUANTIZE"]
    [warning] = conversion.warnings
    assert "0..255" in warning and "test_quantize.py" in warning


SUMS = 2e-5
"""36 products of up to 4 * 4, summed in float32 by torch (36 * 16 * 2^-24 is 3e-5) and in integers
by the engine.
"""


def convolution(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, axis: int = 0
) -> torch.Tensor:
    """A convolution as QAT writes it."""
    zeros = torch.zeros(scale.shape[0], dtype=torch.int32)
    weight = torch.fake_quantize_per_channel_affine(
        weight, scale, zeros, axis, -127, 127
    )
    return F.conv2d(
        torch.fake_quantize_per_tensor_affine(x, 0.03, 0, -128, 127), weight
    )


def test_product_weight_keeps_its_quantize_layers() -> None:
    """TensorRT computes in int8 only if both operands are quantized; each channel of the weight has
    a scale.
    """
    weight = torch.randn(8, 4, 3, 3)
    scale = weight.abs().amax((1, 2, 3)) / 127
    x = torch.randn(2, 4, 8, 8)
    conversion = check(
        lambda x: convolution(x, weight, scale), x, dynamic={0: {0: "n"}}, atol=SUMS
    )
    kinds = layer_kinds(conversion)
    assert kinds["QUANTIZE"] == kinds["DEQUANTIZE"] == 2
    layers = [
        conversion.network.get_layer(i) for i in range(conversion.network.num_layers)
    ]
    scales = [
        tuple(layer.get_input(1).shape)
        for layer in layers
        if kind_of(layer) == "QUANTIZE"
    ]
    assert sorted(scales) == [(), (8,)]


def test_a_transposed_convolution_has_its_channels_on_the_second_axis() -> None:
    weight = torch.randn(4, 8, 3, 3)
    scale, zeros = weight.abs().amax((0, 2, 3)) / 127, torch.zeros(8, dtype=torch.int32)

    def upsample(x: torch.Tensor) -> torch.Tensor:
        kernel = torch.fake_quantize_per_channel_affine(
            weight, scale, zeros, 1, -127, 127
        )
        return F.conv_transpose2d(
            torch.fake_quantize_per_tensor_affine(x, 0.03, 0, -128, 127),
            kernel,
            stride=2,
        )

    check(upsample, torch.randn(2, 4, 6, 6), atol=SUMS)


def test_static_tensor_without_product_is_rounded_by_torch() -> None:
    table = torch.randn(10, 4)
    rounded = lambda i: F.embedding(  # noqa: E731
        i, torch.fake_quantize_per_tensor_affine(table, 0.05, 0, -128, 127)
    )
    assert not layer_kinds(check(rounded, torch.tensor([1, 9]), compile=False))[
        "QUANTIZE"
    ]


FP8_GRAPH = """
graph(%x : Tensor, %scale : Tensor, %axis : int?):
  %r : Tensor = trt_build::fake_quantize_fp8(%x, %scale, %axis)
  return (%r)
"""


@pytest.mark.usefixtures("strongly_typed")
@pytest.mark.skipif(missing(FP8) is not None, reason="this TensorRT has no FP8")
@pytest.mark.parametrize(
    ("axis", "scale"), [(None, torch.tensor(0.01)), (1, torch.tensor([0.01, 0.3, 2.0]))]
)
def test_fp8_rounds_to_even_and_saturates(
    axis: int | None, scale: torch.Tensor
) -> None:
    """Numbers computed by hand: E4M3 has 3 bits of mantissa, so 17 is rounded to 16 or 18, and 19
    to 18 or 20.
    """
    x = torch.tensor([17.0, 19.0, 1e4, -1e4, 0.0]).reshape(5, 1) * scale.reshape(1, -1)
    conversion = check(FP8_GRAPH, x, params=[scale, axis], dynamic={0: {0: "n"}})
    steps = builder.reference.run(conversion, [x])[0] / scale.reshape(1, -1)
    torch.testing.assert_close(
        steps[:, 0], torch.tensor([16.0, 20.0, 448.0, -448.0, 0.0])
    )
    kinds = layer_kinds(conversion)
    assert kinds["QUANTIZE"] == kinds["DEQUANTIZE"] == 1


@pytest.mark.usefixtures("strongly_typed")
def test_under_half_the_pair_reads_back_in_half_without_casts() -> None:
    weight = torch.randn(8, 4, 3, 3)
    scale = weight.abs().amax((1, 2, 3)) / 127
    module = module_of(
        lambda x: convolution(x, weight, scale), [torch.randn(2, 4, 8, 8)]
    )
    conversion = builder.convert(
        module, [builder.TensorSpec("float32", (2, 4, 8, 8))], precision="mixed"
    )
    assert layer_kinds(conversion)["CAST"] == 1  # the output, which stays float32
    dtypes = {
        kind_of(layer): layer.get_output(0).dtype.name
        for layer in map(
            conversion.network.get_layer, range(conversion.network.num_layers)
        )
    }
    assert (dtypes["QUANTIZE"], dtypes["DEQUANTIZE"], dtypes["CONVOLUTION"]) == (
        "INT8",
        "HALF",
        "HALF",
    )
    x = torch.randn(2, 4, 8, 8)
    output, truth = builder.reference.run(conversion, [x])[0], module(x)
    # A scale rounded to half (5e-4) moves the outmost of 127 levels by 0.06 of a step: so many
    # values take another one.
    assert (output - truth).norm() < 1e-2 * truth.norm()
    assert builder.build_engine(conversion)


@pytest.mark.usefixtures("strongly_typed")
def test_scale_beyond_half_range_is_reported_and_float32() -> None:
    weight = torch.randn(8, 4, 3, 3) * 1e-7
    scale = (
        weight.abs().amax((1, 2, 3)) / 127
    )  # 2e-9: half's least positive number is 6e-8
    module = module_of(
        lambda x: convolution(x, weight, scale), [torch.randn(2, 4, 8, 8)]
    )
    conversion = builder.convert(
        module, [builder.TensorSpec("float32", (2, 4, 8, 8))], precision="mixed"
    )
    assert any("beyond torch.float16" in warning for warning in conversion.warnings)


MUTANTS = [(0.5, 0), (30.0, 0), (1.0, 1)]
"""(factor on the scale, axis): each is wrong and must be detected."""


@pytest.mark.parametrize(("factor", "axis"), MUTANTS)
def test_wrong_scale_or_axis_changes_result(factor: float, axis: int) -> None:
    weight = torch.randn(4, 4, 3, 3) * torch.tensor([0.1, 1.0, 5.0, 20.0]).reshape(
        4, 1, 1, 1
    )
    scale = weight.abs().amax((1, 2, 3)) / 127
    x = torch.randn(2, 4, 8, 8)
    module = module_of(lambda x: convolution(x, weight, scale * factor, axis), [x])
    conversion = builder.convert(
        module, [builder.TensorSpec("float32", (2, 4, 8, 8))], precision="int8"
    )
    output, truth = builder.reference.run(conversion, [x])[0], F.conv2d(x, weight)
    assert compare(
        {"y": output.numpy()}, {"y": truth.numpy()}, precision="int8"
    ).problems


def test_right_scale_and_axis_give_expected_result() -> None:
    """The tolerance that these mutations exceed."""
    weight = torch.randn(4, 4, 3, 3) * torch.tensor([0.1, 1.0, 5.0, 20.0]).reshape(
        4, 1, 1, 1
    )
    x = torch.randn(2, 4, 8, 8)
    module = module_of(
        lambda x: convolution(x, weight, weight.abs().amax((1, 2, 3)) / 127), [x]
    )
    conversion = builder.convert(
        module, [builder.TensorSpec("float32", (2, 4, 8, 8))], precision="int8"
    )
    output, truth = builder.reference.run(conversion, [x])[0], F.conv2d(x, weight)
    assert not compare(
        {"y": output.numpy()}, {"y": truth.numpy()}, precision="int8"
    ).problems


class Pair(torch.nn.Module):
    """Quantized tensors that are only dequantized: an activation and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales, zeros = torch.full([8], 0.02), torch.zeros(8)
        weight = torch.quantize_per_channel(
            self.weight, scales, zeros, 0, torch.qint8
        ).dequantize()
        return F.linear(
            torch.quantize_per_tensor(x, 0.03, 0, torch.qint8).dequantize(), weight
        )


def test_quantize_and_dequantize_become_fake_quantization() -> None:
    conversion = check(Pair().eval(), torch.randn(3, 4), atol=SUMS)
    kinds = layer_kinds(conversion)
    assert kinds["QUANTIZE"] == kinds["DEQUANTIZE"] == 2
    check(
        lambda x: torch.quantize_per_tensor(x, 0.1, 10, torch.quint8).dequantize(),
        torch.randn(3, 4) * 20,
    )


def test_packed_modules_are_refused_with_a_fix() -> None:
    from torch.ao.nn.quantized import Linear

    class Packed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(
                torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
            ).dequantize()

    with pytest.raises(builder.UnsupportedOperators) as refused:
        builder.convert(
            torch.jit.script(Packed().eval()), [builder.TensorSpec("float32", (2, 4))]
        )
    assert "before torch.ao.quantization.convert" in str(refused.value)
