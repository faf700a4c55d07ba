"""Reduced precision is written into the network: casts are layers, endpoints keep the module's
dtypes.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import builder
from builder.conversion.precision import Policy, constrain, policy
from builder.conversion.quantized import FP8, missing
from builder.engine import capabilities
from builder.engine.flavor import trt
from builder.errors import UsageError
from builder.lowering.endpoints import half


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.relu(self.first(x))), dim=-1)


SPEC = builder.TensorSpec("float32", ("batch", 16), dims={"batch": (1, 4, 8)})


def layers(conversion: builder.Conversion) -> list[tuple[str, str]]:
    network = conversion.network
    return [
        (network.get_layer(i).type.name, network.get_layer(i).get_output(0).dtype.name)
        for i in range(network.num_layers)
    ]


@pytest.mark.usefixtures("strongly_typed")
@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "HALF"), ("bf16", "BF16")])
def test_products_are_half_and_softmax_is_not(precision: str, dtype: str) -> None:
    conversion = builder.convert(
        torch.jit.script(Classifier().eval()), [SPEC], precision=precision
    )
    kinds = layers(conversion)
    assert {d for kind, d in kinds if kind == "MATRIX_MULTIPLY"} == {dtype}
    assert {d for kind, d in kinds if kind == "SOFTMAX"} == {"FLOAT"}
    assert (
        conversion.network.get_input(0).dtype
        == conversion.network.get_output(0).dtype
        == trt.DataType.FLOAT
    )


@pytest.mark.parametrize("name", ["log_softmax", "special.log_softmax"])
def test_log_softmax_of_half_products_is_float32(name: str) -> None:
    """The difference and the maximum used to be computed in half precision."""

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return operator.attrgetter(name)(torch)(self.layer(x), -1)

    traced = torch.jit.trace(Scores().eval(), torch.randn(2, 8))
    specs = [builder.TensorSpec("float32", (2, 8), name="x")]
    network = builder.convert(traced, specs, precision="fp16").network
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    inside = [layer for layer in layers if "softmax" in layer.name]
    dtypes = {layer.get_output(0).dtype.name for layer in inside}
    assert len(inside) > 5 and dtypes == {"FLOAT"}


def test_half_results_are_within_half_rounding() -> None:
    """Two products of up to 32 terms, each operand rounded to 2^-11 relative: within 5e-3."""
    module = torch.jit.script(Classifier().eval())
    conversion = builder.convert(module, [SPEC], precision="fp16")
    x = torch.randn(4, 16)
    torch.testing.assert_close(
        builder.reference.run(conversion, [x])[0], module(x), rtol=5e-3, atol=1e-3
    )
    assert builder.build_engine(conversion)


@pytest.mark.usefixtures("strongly_typed")
def test_a_pattern_keeps_layers_in_float32() -> None:
    module = torch.jit.script(Classifier().eval())
    conversion = builder.convert(
        module, [SPEC], precision="fp16", keep_fp32=["first/aten::linear_0"]
    )
    assert [d for kind, d in layers(conversion) if kind == "MATRIX_MULTIPLY"] == [
        "FLOAT",
        "HALF",
    ]


@pytest.mark.usefixtures("strongly_typed")
def test_weight_beyond_half_range_is_reported() -> None:
    model = Classifier().eval()
    model.first.weight.data[0, 0] = 1e6
    conversion = builder.convert(torch.jit.script(model), [SPEC], precision="fp16")
    assert any(
        "`weight` has values beyond torch.float16's range" in text
        for text in conversion.warnings
    )


@pytest.mark.parametrize("precision", ["int8", "fp8", "mixed"])
def test_unquantized_module_is_refused(precision: str) -> None:
    if precision == "fp8" and missing(FP8):
        pytest.skip(str(missing(FP8)))
    with pytest.raises(
        UsageError, match="this graph has no quantized nodes"
    ) as refused:
        builder.convert(
            torch.jit.script(Classifier().eval()), [SPEC], precision=precision
        )
    assert "builder.quantize" in str(refused.value.fix) and "calibration" in str(
        refused.value.fix
    )


def test_unavailable_fp8_is_refused_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """8.6 has no strongly typed networks, and with them no FP8."""
    old = replace(capabilities.current(), strongly_typed=False)
    monkeypatch.setattr(capabilities, "current", lambda: old)
    with pytest.raises(
        UsageError, match="quantizes to int8 only: FP8 needs TensorRT 10, 11 or RTX"
    ):
        policy("fp8")


class Widened(nn.Module):
    """A half tensor that is widened and then multiplied."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x.float(), x.float())


def test_a_widened_half_tensor_is_not_narrowed_again() -> None:
    """HALF -> FLOAT -> HALF before a product would be two unnecessary layers."""
    spec = builder.TensorSpec("float16", (8, 8))
    conversion = builder.convert(torch.jit.script(Widened()), [spec], precision="fp16")
    casts = [dtype for kind, dtype in layers(conversion) if kind == "CAST"]
    assert "HALF" not in casts


class Kept(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new = torch.matmul(x, state)
        return new.relu(), new


def test_float32_output_beside_half_output_is_restored() -> None:
    """`io: fp16` with `precision: fp16` and a state, which keeps the module's float32."""
    lowered = half(builder.lower(torch.jit.script(Kept())), inputs=[0], outputs=[0])
    specs = [builder.TensorSpec(dtype, (4, 4)) for dtype in ("float16", "float32")]
    network = builder.convert(lowered, specs, precision="fp16").network
    assert [network.get_output(i).dtype for i in range(2)] == [
        trt.DataType.HALF,
        trt.DataType.FLOAT,
    ]


class _Layers:
    """The parts of a weakly typed network (TensorRT 8.6) that `constrain` reads."""

    def __init__(self, *kinds: str) -> None:
        dtypes = {
            kind: trt.DataType.INT32 if kind == "SHAPE" else trt.DataType.FLOAT
            for kind in kinds
        }
        self.layers = [
            SimpleNamespace(
                type=trt.LayerType.__members__[kind],
                precision=None,
                get_output=lambda _, kind=kind: SimpleNamespace(dtype=dtypes[kind]),
            )
            for kind in kinds
        ]
        self.num_layers = len(kinds)

    def get_layer(self, index: int) -> SimpleNamespace:
        return self.layers[index]


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ((), ["UNARY", "REDUCE"]),
        (("aten::softmax*",), ["NORMALIZATION", "SOFTMAX", "UNARY", "REDUCE"]),
    ],
)
def test_weakly_typed_float32_layers_are_constrained(
    patterns: tuple[str, ...], kept: list[str]
) -> None:
    rules, net = Policy(torch.float16, patterns, typed=False), _Layers(*KINDS)
    assert rules.constrains("softmax", "aten::softmax_0") and not rules.constrains(
        "linear", "aten::linear_0"
    )
    constrain(net, 0, rules.spared("aten::softmax_0"))
    assert [
        layer.type.name for layer in net.layers if layer.precision == trt.DataType.FLOAT
    ] == kept


KINDS = ("CONSTANT", "NORMALIZATION", "SOFTMAX", "UNARY", "SHAPE", "REDUCE")


def test_fp8_is_refused_on_gpus_without_fp8() -> None:
    """An RTX plan may be for several; the oldest decides."""
    from builder.engine import fp8

    fp8.check_targets("fp8", [(8, 9), (12, 0)])
    fp8.check_targets("int8", [(8, 6)])
    with pytest.raises(UsageError, match=r"compute capability 8\.0, 8\.6 have no FP8"):
        fp8.check_targets("fp8", [(8, 0), (8, 6), (8, 9)])


class Masked(nn.Module):
    """A mask of attention: a number that float32 can represent and half cannot."""

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, x).masked_fill(hidden, -1e9)


@pytest.mark.usefixtures("strongly_typed")
def test_number_beyond_half_range_is_reported_with_line() -> None:
    specs = [builder.TensorSpec("float32", (4, 4)), builder.TensorSpec("bool", (4, 4))]
    module = torch.jit.script(Masked())
    [warning] = builder.convert(module, specs, precision="fp16").warnings
    assert (
        "`value` has values beyond torch.float16's range (1e+09)" in warning
        and "masked_fill" in warning
    )
    assert not builder.convert(module, specs, precision="bf16").warnings


@pytest.mark.usefixtures("strongly_typed")
def test_fully_masked_row_stays_finite() -> None:
    """Masks are written with the least number of float32; as -inf in half, the softmax of such a
    row would be NaN.
    """

    class Attention(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            scores = torch.matmul(x, x.transpose(-1, -2))
            return torch.softmax(
                scores.masked_fill(mask, torch.finfo(torch.float32).min), -1
            )

    x, mask = (
        torch.randn(2, 3, 4),
        torch.tensor([[[False, True, False]], [[True, True, True]]]),
    )
    specs = [
        builder.TensorSpec("float32", (2, 3, 4)),
        builder.TensorSpec("bool", (2, 1, 3)),
    ]
    module = torch.jit.trace(Attention(), (x, mask))
    conversion = builder.convert(module, specs, precision="fp16")
    torch.testing.assert_close(
        builder.reference.run(conversion, [x, mask])[0],
        module(x, mask),
        rtol=2e-2,
        atol=2e-3,
    )
    assert any("beyond torch.float16's range" in text for text in conversion.warnings)
