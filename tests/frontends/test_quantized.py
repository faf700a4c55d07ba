"""Programs of PT2E quantization become the layers that QAT modules become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch import Tensor, nn
from torch.export import Dim

import builder
from builder import frontends
from builder.errors import LoweringError
from builder.frontends import ExportedModule
from builder.frontends.export import contents, torchao_operators

pt2e = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)
STEP = 0.03


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        weight = torch.randn(5, 6)
        scales = weight.abs().amax(1) / 127
        steps = (weight / scales[:, None]).round().clamp(-127, 127)
        self.register_buffer("weight", steps.to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(5, dtype=torch.int64))
        self.register_buffer("bias", torch.randn(5))


class Decomposed(Weights):
    """The output of convert_pt2e: activations in pairs, weights stored as int8."""

    def forward(self, x: Tensor) -> Tensor:
        x = pt2e.quantize_per_tensor(x, STEP, 0, *INT8)
        x = pt2e.dequantize_per_tensor(x, STEP, 0, *INT8)
        grid = (self.scales, self.zeros, 0, -127, 127, torch.int8)
        weight = pt2e.dequantize_per_channel(self.weight, *grid)
        return nn.functional.linear(x, weight, self.bias)


class Trained(Weights):
    """The same as a QAT module computes it."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 0.03, 0, -128, 127)
        zeros, weight = (
            self.zeros.to(torch.int32),
            self.weight.float() * self.scales[:, None],
        )
        rounded = torch.fake_quantize_per_channel_affine(
            weight, self.scales, zeros, 0, -127, 127
        )
        return nn.functional.linear(x, rounded, self.bias)


def layers(conversion: builder.Conversion) -> list[str]:
    network = conversion.network
    return [str(network.get_layer(index).type) for index in range(network.num_layers)]


def exported(
    module: nn.Module, x: Tensor | None = None
) -> torch.export.ExportedProgram:
    x = torch.randn(4, 6) if x is None else x
    shapes = ({0: Dim("batch", min=1, max=8)},)
    return torch.export.export(module.eval(), (x,), dynamic_shapes=shapes)


def test_pt2e_program_has_the_layers_of_a_qat_module(tmp_path: Path) -> None:
    """From a file: the same layers as the module with fake quantization, and torch's outputs."""
    program = exported(Decomposed())
    torch.export.save(program, tmp_path / "int8.pt2")
    loaded = frontends.load(tmp_path / "int8.pt2")
    assert isinstance(loaded, ExportedModule)
    conversion = builder.convert(loaded.program)
    trained = builder.convert(torch.jit.script(Trained()), list(loaded.axes.specs()))
    assert sorted(layers(conversion)) == sorted(layers(trained))
    assert sum("DEQUANTIZE" in kind for kind in layers(conversion)) == 2
    x = torch.randn(3, 6)
    (output,) = builder.reference.run(conversion, [x])
    torch.testing.assert_close(output, Decomposed()(x))
    torch.testing.assert_close(output, Trained()(x))


class Computed(nn.Module):
    """Scales of each request."""

    def forward(self, x: Tensor) -> Tensor:
        scale, zero = x.abs().max() / 127, torch.zeros((), dtype=torch.int64)
        q = pt2e.quantize_per_tensor.tensor(x, scale, zero, *INT8)
        return pt2e.dequantize_per_tensor.tensor(q, scale, zero, *INT8)


class Whole(nn.Module):
    """Whole numbers as a result."""

    def forward(self, x: Tensor) -> Tensor:
        return pt2e.quantize_per_tensor(x, STEP, 0, *INT8)


class Other(nn.Module):
    """Another scale on the way back."""

    def forward(self, x: Tensor) -> Tensor:
        q = pt2e.quantize_per_tensor(x, STEP, 0, *INT8)
        return pt2e.dequantize_per_tensor(q, 2 * STEP, 0, *INT8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Computed, "scale or zero point is computed from values"),
        (Whole, "read by another operator than dequantize"),
        (Other, "dequantized with other scales"),
    ],
)
def test_unsupported_quantization_is_refused(
    build: Callable[[], nn.Module], message: str
) -> None:
    """The error has the source location and a fix."""
    with pytest.raises(LoweringError, match=message) as caught:
        ExportedModule(exported(build()))
    assert "test_quantized.py" in str(caught.value.where) and caught.value.fix


def test_operators_that_choose_scales_are_refused() -> None:
    """The archive check accepts only the four operators."""
    target = "torch.ops.quantized_decomposed.choose_qparams.tensor"
    (problem,) = contents.problems({"target": target})
    assert "quantized operators that are read" in problem
    assert not list(
        contents.problems(
            {"target": target.replace("choose_qparams", "quantize_per_tensor")}
        )
    )


def test_unsupported_torchao_operators_are_refused_with_a_fix() -> None:
    """A library that brings the namespace makes them custom operators."""
    target = {"target": "torch.ops.torchao.int_scaled_matmul.default"}
    (problem,) = contents.problems(target)
    assert "quantize_affine" in problem and "Int8WeightOnlyConfig" in problem
    assert not list(contents.problems(target, custom=True))
    assert not list(
        contents.problems({"target": "torch.ops.torchao.quantize_affine.default"})
    )


class Rounding(Weights):
    """What Int8StaticActivationInt8WeightConfig and Int8DynamicActivationInt8WeightConfig of
    torchao 0.18 export.
    """

    zero_point, scale_dtype = 0, torch.float32

    def __init__(self, dynamic: bool = False) -> None:
        super().__init__()
        torchao_operators.register()
        self.dynamic = dynamic
        self.register_buffer("step", torch.tensor([[STEP]]))

    def forward(self, x: Tensor) -> Tensor:
        block, scale = list(x.shape), self.step
        zero = torch.full_like(scale, self.zero_point, dtype=torch.int8)
        if self.dynamic:
            block[:-1] = [1] * (x.dim() - 1)
            options = (
                "SYMMETRIC",
                block,
                torch.int8,
                -128,
                127,
                EPS,
                self.scale_dtype,
                torch.int8,
            )
            scale, zero = torch.ops.torchao.choose_qparams_affine(x, *options, True)
        q = torch.ops.torchao.quantize_affine(
            x, block, scale, zero, torch.int8, -128, 127
        )
        y = self.multiplied(q.reshape(-1, x.size(-1)), self.weight.t())
        y = self.scaled(y, scale.reshape(-1, 1))
        return y.reshape(*x.shape[:-1], -1).add_(self.bias)

    def multiplied(self, q: Tensor, weight: Tensor) -> Tensor:
        return torch.ops.aten._int_mm(q, weight)  # type: ignore[no-any-return]

    def scaled(self, y: Tensor, scale: Tensor) -> Tensor:
        return y.to(torch.float32) * scale.to(torch.float32) * self.scales.flatten()


class Shifted(Rounding):
    """What torchao exports on a processor with AVX512-VNNI and without AMX."""

    added, shift = 128, 128

    def multiplied(self, q: Tensor, weight: Tensor) -> Tensor:
        unsigned = (q.to(torch.int32) + self.added).to(torch.uint8)
        product = torch.ops.aten._int_mm(unsigned, weight)
        sums = weight.sum(dim=0, keepdim=True, dtype=torch.int32) * self.shift
        return product.sub_(sums)  # type: ignore[no-any-return]


EPS = 1.1920928955078125e-07


@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 6)], ids=["rows", "tokens"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("kind", [Rounding, Shifted])
def test_torchao_quantized_activations(
    kind: type[Rounding], dynamic: bool, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Constant scales become the layers of PT2E, those of each request become arithmetic."""
    module = kind(dynamic)
    program = exported(module, torch.randn(shape))
    torch.export.save(program, tmp_path / "int8.pt2")
    loaded = frontends.load(tmp_path / "int8.pt2")
    assert isinstance(loaded, ExportedModule)
    conversion = builder.convert(loaded.program)
    pairs = sum("DEQUANTIZE" in kind for kind in layers(conversion))
    assert pairs == (0 if dynamic else 2)
    assert sum("MATRIX_MULTIPLY" in kind for kind in layers(conversion)) == 1
    x = torch.randn(3, *shape[1:]) * torch.tensor([0.1, 1, 30]).reshape(
        3, *[1] * (len(shape) - 1)
    )
    (output,), expected = builder.reference.run(conversion, [x]), module(x)
    torch.testing.assert_close(output, expected)
    # quantized weights alone give other outputs, so the activations are rounded
    plain = nn.functional.linear(
        x, module.weight.float() * module.scales[:, None], module.bias
    )
    assert (plain - expected).abs().max() > 1e-3
    assert builder.build_engine(conversion)


class WithZeroPoint(Rounding):
    zero_point = 3


class Unscaled(Rounding):
    """Only one of the two scales."""

    def scaled(self, y: Tensor, scale: Tensor) -> Tensor:
        return torch.relu(y.to(torch.float32) * scale)


class OtherScale(Rounding):
    """Twice the scale that the activations have."""

    def scaled(self, y: Tensor, scale: Tensor) -> Tensor:
        return super().scaled(y, scale * 2)


class OtherShift(Shifted):
    """The subtracted number differs from the added one."""

    shift = 64


class OtherSum(Shifted):
    """The product is read before and after the subtraction."""

    def multiplied(self, q: Tensor, weight: Tensor) -> Tensor:
        product = torch.ops.aten._int_mm(
            (q.to(torch.int32) + 128).to(torch.uint8), weight
        )
        again = product + 1
        return (
            product.sub_(weight.sum(0, keepdim=True, dtype=torch.int32) * 128) + again
        )


class ReadAgain(Rounding):
    """Whole numbers as a result."""

    def forward(self, x: Tensor) -> Tensor:
        zero = torch.zeros_like(self.step, dtype=torch.int8)
        block = list(x.shape)
        return torch.ops.torchao.quantize_affine(
            x, block, self.step, zero, torch.int8, -128, 127
        )


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (WithZeroPoint, "with zero points"),
        (Unscaled, "before it is multiplied by both scales"),
        (OtherScale, "before it is multiplied by both scales"),
        (OtherShift, "before it is multiplied by both scales"),
        (OtherSum, "before it is multiplied by both scales"),
        (ReadAgain, "read by an operator other than"),
    ],
)
def test_unsupported_torchao_quantization_is_refused(
    module: type[Rounding], message: str
) -> None:
    with pytest.raises(LoweringError, match=message) as caught:
        ExportedModule(exported(module()))
    assert "test_quantized.py" in str(caught.value.where) and caught.value.fix


class WeightOnly(Weights):
    """What Int8WeightOnlyConfig of torchao exports."""

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.ops.aten.mm(x, self.weight.t().to(x.dtype))
        return (whole * self.scales.flatten()).add_(self.bias)


class Restored(Weights):
    """What IntxWeightOnlyConfig of torchao exports: int8 weights in blocks, with zero points."""

    def __init__(self) -> None:
        super().__init__()
        torchao_operators.register()
        self.register_buffer("steps", torch.rand(5, 2) / 20)
        self.register_buffer("points", torch.randint(-3, 3, (5, 2), dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        given = (self.weight, [1, 3], self.steps, self.points, torch.int8, -8, 7)
        weight = torch.ops.torchao.dequantize_affine(*given, output_dtype=torch.float32)
        return nn.functional.linear(x, weight, self.bias)


@pytest.mark.parametrize("kind", [WeightOnly, Restored])
def test_integer_weights_become_floats(kind: type[nn.Module]) -> None:
    """Activations are not rounded, so the network has the restored weights."""
    module = kind()
    conversion = builder.convert(exported(module))
    assert not any("QUANTIZE" in kind for kind in layers(conversion))
    x = torch.randn(3, 6)
    (output,) = builder.reference.run(conversion, [x])
    torch.testing.assert_close(output, module(x))
