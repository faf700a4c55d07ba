"""Wrong converters and passes, each with a module in which one node has a wrong output.

Most modules use the operator twice. The wrong converter is correct for the first use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from builder.engine import trt
from builder.lowering import ir
from builder.lowering import pipeline as passes
from builder.lowering.passes import Context, Pass
from tests.diagnosis.planting import Arguments, change, plant

FLOATS = "dtype: float32, shape: [4, 6]"


class Axes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.softmax(x + 1.0, -1)
        z = torch.softmax(y * 3.0, 0)  # here
        return torch.tanh(z)


def last_axis(ctx: Any, arguments: Arguments) -> Arguments:
    return {**arguments, "dim": -1}


class Overflows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.softmax(torch.sigmoid(x), -1)
        z = torch.softmax(x * 10.0, -1)  # here
        return y + z


def unshifted_exponentials(ctx: Any, self: Any, dim: int) -> Any:
    """A softmax that does not subtract the maximum, so its exponentials exceed float16's 65504."""
    half = ctx.cast(self, torch.float16)
    powers = ctx.net.add_unary(half, trt.UnaryOperation.EXP).get_output(0)
    total = ctx.net.add_reduce(
        powers, trt.ReduceOperation.SUM, 1 << ctx.axis(self, dim), True
    )
    quotient = ctx.elementwise("DIV", powers, total.get_output(0))
    return ctx.cast(quotient, ctx.dtype(self))


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.add(torch.tanh(x), x)
        z = torch.add(torch.sigmoid(y), y, alpha=0.125)  # here
        return torch.relu(z)


def without_scale(ctx: Any, arguments: Arguments) -> Arguments:
    return {**arguments, "alpha": 1}


class Padded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.constant_pad_nd(torch.tanh(x), [2, 2], 0.5)
        z = torch.constant_pad_nd(torch.sigmoid(y), [2, 1], 0.0)  # here
        return z * 2.0


def shifted_padding(ctx: Any, arguments: Arguments) -> Arguments:
    left, right = arguments["pad"]
    middle = (left + right) // 2
    return {**arguments, "pad": [middle, left + right - middle]}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(6, 5), nn.LSTM(5, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(torch.tanh(self.first(x)).unsqueeze(1))  # here
        return torch.relu(y)


def swapped_gates(ctx: Any, arguments: Arguments) -> Arguments:
    def swapped(weight: Tensor) -> Tensor:
        i, f, g, o = weight.chunk(4)
        return torch.cat([i, g, f, o])

    return {**arguments, "params": [swapped(weight) for weight in arguments["params"]]}


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.layer_norm(x, [6], self.first, None, 1e-5)
        z = torch.layer_norm(torch.sigmoid(y), [6], self.last, None, 0.5)  # here
        return torch.relu(z)


def default_epsilon(ctx: Any, arguments: Arguments) -> Arguments:
    return {**arguments, "eps": 1e-5}


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.rand(6, 6)),
            nn.Parameter(torch.rand(6)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(functional.linear(x, self.weight))
        z = functional.linear(y, self.weight, self.bias)  # here
        return torch.relu(z)


def without_bias(ctx: Any, arguments: Arguments) -> Arguments:
    return {**arguments, "bias": None}


class Divided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.div(x, torch.abs(x) + 1.0)
        integers = (torch.abs(y) * 9.0).to(torch.int64)
        z = torch.div(integers, integers + 2)  # here
        return z + y


def integer_quotient(ctx: Any, self: Any, other: Any) -> Any:
    """The quotient in the operands' dtype, so integers lose the fraction."""
    dtype = ctx.promoted(self, other)
    quotient = ctx.elementwise("DIV", *ctx.operands(self, other, dtype=dtype))
    return ctx.cast(quotient, torch.float32)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (
            nn.Parameter(torch.rand(5, 6)),
            nn.Parameter(torch.rand(5, 5)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(functional.linear(x, self.first))
        z = functional.linear(y, self.last)  # here
        return torch.relu(z)


def transposed_if_square(ctx: Any, arguments: Arguments) -> Arguments:
    weight = arguments["weight"]
    square = weight.shape[0] == weight.shape[1]
    return {**arguments, "weight": weight.t().contiguous() if square else weight}


class Gelus(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(x, approximate="tanh")
        z = functional.gelu(y * 2.0)  # here
        return z * 2.0


def approximated_by_tanh(ctx: Any, arguments: Arguments) -> Arguments:
    return {**arguments, "approximate": "tanh"}


class Sliced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x[:, :5])
        z = y[:, 1:4]  # here
        return torch.sigmoid(z)


def shifted_by_one(ctx: Any, arguments: Arguments) -> Arguments:
    start, end = arguments["start"], arguments["end"]
    return {**arguments, "start": start + 1, "end": end + 1} if start else arguments


class Reduced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x) * x.mean(dim=1, keepdim=True)
        z = y.mean(dim=0)  # here
        return torch.sigmoid(z)


def over_rows(ctx: Any, arguments: Arguments) -> Arguments:
    """The mean over axis 1 instead of axis 0; its shape differs, too."""
    return {**arguments, "dim": [1]}


class Concatenated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([torch.tanh(x), torch.tanh(x)], 1)
        z = torch.cat([y, y * 2.0], 1)  # here
        return torch.sigmoid(z)


def reversed_order(ctx: Any, arguments: Arguments) -> Arguments:
    return {**arguments, "tensors": arguments["tensors"][::-1]}


class Folded(nn.Module):
    """The network has one layer for both nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 4, 3)
        self.mean, self.variance = (
            nn.Parameter(torch.rand(4)),
            nn.Parameter(torch.rand(4)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(torch.tanh(x).unsqueeze(0))
        z = torch.batch_norm(  # here
            y, None, None, self.mean, self.variance, False, 0.1, 0.5, True
        )
        return torch.relu(z)


class Clamped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.clamp(torch.tanh(x), min=-3.0)
        z = torch.clamp(y * 4.0, min=-1.0)  # here
        return torch.sigmoid(z)


def remove_clamps(graph: Any, context: Context) -> None:
    """Removes each clamp, as if its input were never below the limit."""
    for node in ir.nodes_of(graph, "aten::clamp"):
        ir.bypass(node)


class Rewritten(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.aten.hardtanh(torch.tanh(x), -1.0, 1.0)
        z = torch.ops.aten.hardtanh(y * 4.0, 0.0, 2.0)  # here
        return torch.sigmoid(z)


def to_relu(graph: Any, context: Context) -> None:
    """Replaces each hardtanh with the lower limit 0 by a relu: the upper limit is lost."""
    for node in ir.nodes_of(graph, "aten::hardtanh"):
        if node.inputsAt(1).toIValue() == 0.0:
            relu = ir.insert(graph, "aten::relu", [node.inputsAt(0)], node)
            ir.replace(node, [relu.output()])


Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Defect:
    """`plant` makes the `operator` wrong; `function` is the name in the report."""

    name: str
    module: Callable[[], nn.Module]
    operator: str
    function: str
    plant: Plant
    manifest: str = ""
    step: str = "network"


def _changed(
    name: str,
    module: Callable[[], nn.Module],
    key: str,
    changed: Callable[..., Arguments],
) -> Defect:
    def planted(monkeypatch: pytest.MonkeyPatch) -> None:
        change(monkeypatch, key, changed)

    return Defect(name, module, key.partition(".")[0], "wrong", planted)


def _built(
    name: str,
    module: Callable[[], nn.Module],
    key: str,
    build: Callable[..., Any],
    manifest: str = "",
) -> Defect:
    def planted(monkeypatch: pytest.MonkeyPatch) -> None:
        plant(monkeypatch, key, build)

    return Defect(
        name, module, key.partition(".")[0], build.__name__, planted, manifest
    )


def _pass(
    name: str,
    module: Callable[[], nn.Module],
    operator: str,
    rewrite: Callable[..., None],
) -> Defect:
    def planted(monkeypatch: pytest.MonkeyPatch) -> None:
        names = [existing.name for existing in passes.PIPELINE]
        index = names.index("view-to-reshape")
        before, after = passes.PIPELINE[:index], passes.PIPELINE[index:]
        step = Pass(rewrite.__name__, rewrite)
        monkeypatch.setattr(passes, "PIPELINE", (*before, step, *after))

    return Defect(name, module, operator, rewrite.__name__, planted, step="lowered")


DEFECTS = (
    _changed("wrong axis", Axes, "aten::softmax.int", last_axis),
    _built(
        "fp16 overflow in softmax",
        Overflows,
        "aten::softmax.int",
        unshifted_exponentials,
        "precision: fp16\n",
    ),
    _changed("lost scale", Scaled, "aten::add.Tensor", without_scale),
    _changed("pad off by one", Padded, "aten::constant_pad_nd", shifted_padding),
    _changed("swapped LSTM gates", Recurrent, "aten::lstm.input", swapped_gates),
    _changed("wrong epsilon", Normalized, "aten::layer_norm", default_epsilon),
    _changed("missing bias", Biased, "aten::linear", without_bias),
    _built("integer division", Divided, "aten::div.Tensor", integer_quotient),
    _changed("transposed weight", Weighted, "aten::linear", transposed_if_square),
    _changed("wrong gelu", Gelus, "aten::gelu", approximated_by_tanh),
    _changed("slice off by one", Sliced, "aten::slice.Tensor", shifted_by_one),
    _changed("wrong reduction dims", Reduced, "aten::mean.dim", over_rows),
    _changed("wrong order of cat", Concatenated, "aten::cat", reversed_order),
    _changed("wrong epsilon, folded", Folded, "aten::batch_norm", default_epsilon),
    _pass("pass drops a node", Clamped, "aten::clamp", remove_clamps),
    _pass("pass rewrites a node", Rewritten, "aten::hardtanh", to_relu),
)
