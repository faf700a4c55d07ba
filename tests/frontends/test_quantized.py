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
from builder.frontends.export import contents

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
    """What convert_pt2e writes: activations in pairs, weights stored as int8."""

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
        zeros, weight = self.zeros.to(torch.int32), self.weight.float() * self.scales[:, None]
        rounded = torch.fake_quantize_per_channel_affine(weight, self.scales, zeros, 0, -127, 127)
        return nn.functional.linear(x, rounded, self.bias)


def layers(conversion: builder.Conversion) -> list[str]:
    network = conversion.network
    return [str(network.get_layer(index).type) for index in range(network.num_layers)]


def exported(module: nn.Module) -> torch.export.ExportedProgram:
    x = torch.randn(4, 6)
    shapes = ({0: Dim("batch", min=1, max=8)},)
    return torch.export.export(module.eval(), (x,), dynamic_shapes=shapes)


def test_layers_are_those_of_a_trained_module(tmp_path: Path) -> None:
    """From a file: the same layers as the module with fake quantization, and torch's answers."""
    program = exported(Decomposed())
    torch.export.save(program, tmp_path / "int8.pt2")
    loaded = frontends.load(tmp_path / "int8.pt2")
    assert isinstance(loaded, ExportedModule)
    conversion = builder.convert(loaded.program)
    trained = builder.convert(torch.jit.script(Trained()), list(loaded.axes.specs()))
    assert sorted(layers(conversion)) == sorted(layers(trained))
    assert sum("DEQUANTIZE" in kind for kind in layers(conversion)) == 2
    x = torch.randn(3, 6)
    (answer,) = builder.reference.run(conversion, [x])
    torch.testing.assert_close(answer, Decomposed()(x))
    torch.testing.assert_close(answer, Trained()(x))


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
def test_what_no_layer_expresses(build: Callable[[], nn.Module], message: str) -> None:
    """The error has the source line and the remedy."""
    with pytest.raises(LoweringError, match=message) as caught:
        ExportedModule(exported(build()))
    assert "test_quantized.py" in str(caught.value.where) and caught.value.fix


def test_operators_that_choose_scales_are_not_loaded() -> None:
    """The archive check knows the four operators only."""
    target = "torch.ops.quantized_decomposed.choose_qparams.tensor"
    (problem,) = contents.problems({"target": target})
    assert "quantized operators that are read" in problem
    assert not list(
        contents.problems({"target": target.replace("choose_qparams", "quantize_per_tensor")})
    )


def test_operators_of_torchao_are_refused_with_what_to_use_instead() -> None:
    """A library that brings the namespace makes them custom operators."""
    target = {"target": "torch.ops.torchao.quantize_affine.default"}
    (problem,) = contents.problems(target)
    assert "torchao.quantization.pt2e" in problem and "Int8WeightOnlyConfig" in problem
    assert not list(contents.problems(target, custom=True))


class WeightOnly(Weights):
    """What Int8WeightOnlyConfig of torchao exports."""

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.ops.aten.mm(x, self.weight.t().to(x.dtype))
        return (whole * self.scales.flatten()).add_(self.bias)


def test_weights_of_whole_numbers_become_floats() -> None:
    """There is nothing to round: the network has the restored weights."""
    module = WeightOnly()
    conversion = builder.convert(exported(module))
    assert not any("QUANTIZE" in kind for kind in layers(conversion))
    x = torch.randn(3, 6)
    (answer,) = builder.reference.run(conversion, [x])
    torch.testing.assert_close(answer, module(x))
