"""Post-training quantization: scales, rounded operands, and reasons for other operands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.conversion.quantized import FP8, missing
from builder.engine import capabilities
from builder.engine.tensorrt8.config import flags
from builder.engine.tensorrt8.refused import REFUSED
from builder.errors import UsageError
from builder.lowering import ir, lower
from builder.parity import compare
from builder.quantization import quantize
from builder.quantization.nodes import scale_of
from builder.quantization.products import FAKE
from builder.quantization.results import COMPUTED, TRANSPOSED
from builder.quantization.statistics import METHODS
from examples.networks import ResidualCNN, TransformerEncoder, with_trained_statistics
from tests.conversion import old
from tests.conversion.harness import layer_kinds

PRECISIONS = ["int8", "fp8", "mixed"]
NO_FP8 = missing(FP8)


def supported(precision: str) -> None:
    if precision == "fp8" and NO_FP8:
        pytest.skip(NO_FP8)


class Products(nn.Module):
    """One product of each kind; the weights of the convolution's channels differ by a factor of up
    to a thousand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = (
            nn.Conv1d(4, 6, 3, padding=1),
            nn.ConvTranspose1d(6, 4, 2, stride=2),
        )
        self.linear = nn.Linear(4, 4)
        self.matrix = nn.Parameter(torch.randn(4, 5))
        with torch.no_grad():
            self.conv.weight *= torch.logspace(-2.5, 0.5, 6).reshape(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(self.up(self.conv(x)).transpose(1, 2))
        return torch.softmax(torch.matmul(y, y.transpose(1, 2)), dim=-1) @ (
            y @ self.matrix
        )


def products() -> tuple[torch.jit.ScriptModule, list[Tensor], builder.TensorSpec]:
    torch.manual_seed(0)
    spec = builder.TensorSpec("float32", ("batch", 4, 8), dims={"batch": (1, 2, 8)})
    return torch.jit.script(Products().eval()), [torch.randn(2, 4, 8)], spec


def example(
    name: str,
) -> tuple[
    torch.jit.ScriptModule, list[builder.TensorSpec], list[list[Tensor]], list[Tensor]
]:
    """(module, specs, calibration batches, one other batch) of a network of examples/."""
    torch.manual_seed(0)
    if name == "residual_cnn":
        module = torch.jit.script(
            with_trained_statistics(ResidualCNN(), torch.randn(8, 3, 64, 64))
        )
        specs = [
            builder.TensorSpec(
                "float32", ("batch", 3, 64, 64), dims={"batch": (1, 4, 8)}
            )
        ]
        batches = [[torch.randn(4, 3, 64, 64)] for _ in range(5)]
    else:
        inputs = [[torch.randn(4, 16, 64), torch.rand(4, 16) < 0.2] for _ in range(5)]
        module = torch.jit.trace(
            TransformerEncoder().eval(), inputs[0], check_trace=False
        )
        dims = {"batch": (1, 4, 8)}
        specs = [
            builder.TensorSpec("float32", ("batch", 16, 64), dims=dims),
            builder.TensorSpec("bool", ("batch", 16), dims=dims),
        ]
        batches = inputs
    return module, specs, batches[1:], batches[0]


def parity_problems(
    outputs: list[Tensor], expected_outputs: list[Tensor], precision: str
) -> tuple[str, ...]:
    named = [
        {str(i): t.detach().numpy() for i, t in enumerate(ts)}
        for ts in (outputs, expected_outputs)
    ]
    return compare(*named, precision=precision).problems


@pytest.mark.parametrize("precision, kept", [("int8", True), ("fp8", False)])
def test_old_tensorrt_gets_no_transposed_convolution_in_int8(
    monkeypatch: pytest.MonkeyPatch, precision: str, kept: bool
) -> None:
    """The builder of 8.6 ends with "buildRefitEngine ... Assertion engine failed" (H100)."""
    tensorrt8 = replace(capabilities.current(), refused=REFUSED)
    monkeypatch.setattr(capabilities, "current", lambda: tensorrt8)
    module, batch, spec = products()
    quantized = quantize(lower(module, specs=[spec]), [batch], precision)
    reasons = {layer.name: layer.reason for layer in quantized.layers}
    names = [name for name, reason in reasons.items() if reason == TRANSPOSED]
    assert names == (["up/aten::_convolution_0"] if kept else [])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "name",
    ["transformer_encoder", pytest.param("residual_cnn", marks=pytest.mark.slow)],
)
def test_examples_stay_within_their_tolerance(name: str, precision: str) -> None:
    """For inputs that calibration has not seen: the lowered graph in torch, and the network."""
    supported(precision)
    module, specs, batches, unseen = example(name)
    quantized = quantize(lower(module, specs=specs), batches, precision)
    conversion = builder.convert(quantized.lowered, specs, precision=precision)
    expected = module(*unseen)
    expected_outputs = [expected] if isinstance(expected, Tensor) else list(expected)
    assert not parity_problems(
        list(quantized.lowered.run(*unseen)), expected_outputs, precision
    )
    assert not parity_problems(
        builder.reference.run(conversion, unseen), expected_outputs, precision
    )
    assert len(quantized.layers) == (10 if len(specs) == 1 else 16)
    left = [layer for layer in quantized.layers if not layer.quantized]
    attention = 4 if (name, precision) == ("transformer_encoder", "mixed") else 0
    assert [layer.reason for layer in left] == [COMPUTED] * attention
    assert layer_kinds(conversion)["QUANTIZE"] > len(quantized.layers) - len(left)
    assert builder.build_engine(conversion)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["int8", "mixed"])
@pytest.mark.parametrize("name", ["residual_cnn", "transformer_encoder"])
def test_engines_of_examples_stay_within_their_tolerance(
    name: str, precision: str
) -> None:
    from builder.engine.run import Engine

    module, specs, batches, unseen = example(name)
    quantized = quantize(lower(module, specs=specs), batches, precision)
    conversion = builder.convert(quantized.lowered, specs, precision=precision)
    expected = module(*unseen)
    with Engine(builder.build_engine(conversion)) as engine:
        outputs = [t.cpu() for t in engine(*unseen)]
    assert not parity_problems(
        outputs,
        [expected] if isinstance(expected, Tensor) else list(expected),
        precision,
    )


@pytest.fixture
def tensorrt_8_6() -> Iterator[None]:
    with old.playing():
        yield


def test_precision_constraints_are_preferences_with_int8_on_8_6(
    tensorrt_8_6: None,
) -> None:
    module, x, spec = products()
    quantized = quantize(lower(module), [x], "mixed")
    all_flags = [
        flags(builder.convert(graph, [spec], precision=precision))
        for graph, precision in (
            (quantized.lowered, "mixed"),
            (module, "fp16"),
            (module, "fp32"),
        )
    ]
    assert [(f["fp16"], f["int8"], f["precision_constraints"]) for f in all_flags] == [
        (True, True, "prefer"),
        (True, False, "obey"),
        (False, False, None),
    ]


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_stays_within_tolerance(method: str) -> None:
    module, specs, batches, unseen = example("residual_cnn")
    quantized = quantize(lower(module, specs=specs), batches, "int8", method=method)
    assert not parity_problems(
        list(quantized.lowered.run(*unseen)), [module(*unseen)], "int8"
    )


def test_weights_have_a_scale_for_each_output_channel() -> None:
    module, x, _ = products()
    graph = quantize(lower(module), [x]).lowered.graph
    axes = [
        (tuple(node.inputsAt(0).toIValue().shape), node.inputsAt(3).toIValue())
        for node in ir.nodes_of(graph, "aten::fake_quantize_per_channel_affine")
    ]
    assert axes == [((6, 4, 3), 0), ((6, 4, 2), 1), ((4, 4), 0), ((5, 4), 0)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_kind_of_product_converts_and_compiles(precision: str) -> None:
    """`mixed` computes products above its noise bound in half; the others quantize all."""
    supported(precision)
    module, x, spec = products()
    quantized = quantize(lower(module), [x], precision)
    kinds_of = ["_convolution", "_convolution", "linear", "matmul", "linear", "matmul"]
    assert [
        layer.operator.removeprefix("aten::") for layer in quantized.layers
    ] == kinds_of
    conversion = builder.convert(quantized.lowered, [spec], precision=precision)
    assert not parity_problems(
        builder.reference.run(conversion, x), [module(*x)], precision
    )
    assert builder.build_engine(conversion)


def test_tensor_read_by_two_products_is_rounded_once() -> None:
    class TwoLayers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + self.b(x)

    quantized = quantize(
        lower(torch.jit.script(TwoLayers().eval())), [[torch.randn(3, 4)]]
    )
    assert (
        len(
            ir.nodes_of(
                quantized.lowered.graph, "aten::fake_quantize_per_tensor_affine"
            )
        )
        == 1
    )


def test_batch_normalization_is_folded_before_rounding() -> None:
    module, specs, batches, _ = example("residual_cnn")
    lowered = lower(module, specs=specs)
    quantized = quantize(lowered, batches)
    assert ir.nodes_of(lowered.graph, "aten::batch_norm")
    assert not ir.nodes_of(quantized.lowered.graph, "aten::batch_norm")


class Residual(nn.Module):
    """Two residual blocks; the shortcut of the second is a convolution. A third addition is that of
    a linear layer, which no convolution absorbs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.short, self.last = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x) + x)
        y = torch.relu(self.b(y) + self.short(y))
        return self.last(y + self.linear(y))


def test_residual_is_rounded_if_a_convolution_absorbs_the_addition() -> None:
    module, x = torch.jit.script(Residual().eval()), torch.randn(2, 4, 6, 6)
    lowered = lower(module)
    quantized = quantize(lowered, [[x]])
    additions = ir.nodes_of(quantized.lowered.graph, "aten::add")
    kinds = [sorted(v.node().kind() for v in list(a.inputs())[:2]) for a in additions]
    assert quantized.additions == 2 and "and 2 residual additions" in quantized.summary
    assert kinds[:2] == [["aten::_convolution", FAKE[0]]] * 2
    assert FAKE[0] not in kinds[2]
    assert not parity_problems(list(quantized.lowered.run(x)), [module(x)], "int8")
    skipped = quantize(lowered, [[x]], skip=["*"])
    assert skipped.additions == 0


class ResultReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(torch.relu(y + x)) * y


class NumberAdded(ResultReadTwice):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) + x.size(0))


class OnlyTheLastAddition(ResultReadTwice):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(self.first(x)) + x.mean(1, keepdim=True))


@pytest.mark.parametrize("kind", [ResultReadTwice, NumberAdded, OnlyTheLastAddition])
def test_addition_is_not_rounded(kind: type[nn.Module]) -> None:
    """A convolution does not absorb it, or no quantized product reads the sum or residual."""
    quantized = quantize(
        lower(torch.jit.script(kind().eval())), [[torch.ones(2, 4, 3, 3)]]
    )
    assert quantized.additions == 0
    assert [layer.quantized for layer in quantized.layers] == [True, True]


def test_skipped_layers_are_reported() -> None:
    module, x, _ = products()
    quantized = quantize(lower(module), [x], skip=["up/*", "lin*aten::linear_0"])
    skipped_names = [layer.name for layer in quantized.layers if not layer.quantized]
    assert skipped_names == ["up/aten::_convolution_0", "linear/aten::linear_0"]
    assert {layer.reason for layer in quantized.layers if not layer.quantized} == {
        "a pattern names it"
    }
    assert "8 bits in 4 of 6 products" in quantized.summary


def test_reported_names_are_names_of_network_layers() -> None:
    """`skip` and `keep_fp32` use the names that `trt-build inspect` prints."""
    module, x, spec = products()
    quantized = quantize(lower(module), [x])
    conversion = builder.convert(quantized.lowered, [spec], precision="int8")
    names = {
        conversion.network.get_layer(i).name
        for i in range(conversion.network.num_layers)
    }
    assert {layer.name for layer in quantized.layers} <= names


class Outlier(nn.Module):
    """One value of the first product's input is ten thousand times the others, so max leaves them
    no level.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        with torch.no_grad():
            self.first.weight[:, 0] = 0.0  # the output does not depend on it

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x)[:, 1:] @ self.second(torch.tanh(x)).transpose(0, 1)[1:]


def test_mixed_computes_noisy_products_in_half() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 64)
    x[0, 0] = 1e4
    lowered = lower(torch.jit.script(Outlier().eval()))
    quantized = quantize(lowered, [[x]], "mixed")
    first, second, product = quantized.layers
    assert (
        not first.quantized and first.sqnr is not None and "below 30 dB" in first.reason
    )
    assert second.quantized and (second.sqnr or 0) > 30
    assert not product.quantized and "fuses attention in half" in product.reason
    assert quantize(lowered, [[x]], "int8").layers[2].quantized


def test_products_that_cannot_be_calibrated_have_a_reason() -> None:
    class Uncalibrated(nn.Module):
        def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            infinite = torch.exp(x * 1000) @ x
            return x @ x, n @ n, infinite

    x, n = torch.eye(3) + 1, torch.ones(3, 3, dtype=torch.int32)
    quantized = quantize(lower(torch.jit.script(Uncalibrated())), [[x, n]])
    by_reason = {layer.reason: layer.quantized for layer in quantized.layers}
    assert by_reason == {
        "": True,
        "it multiplies int32": False,
        "the calibration data lead to values that are not finite": False,
    }


@pytest.mark.parametrize("precision", ["int8", "mixed"])
def test_product_with_overflowing_result_is_not_quantized(precision: str) -> None:
    """Its operands are finite, but the noise of the result cannot be measured."""

    class Overflowing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.full((4, 4), 3e38)

    quantized = quantize(
        lower(torch.jit.script(Overflowing())), [[torch.full((4, 4), 3e38)]], precision
    )
    (layer,) = quantized.layers
    assert (layer.quantized, layer.sqnr) == (
        False,
        None,
    ) and "not finite" in layer.reason


def test_fake_quantized_module_keeps_its_scales() -> None:
    class FakeQuantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            w = torch.fake_quantize_per_tensor_affine(
                self.linear.weight, 0.01, 0, -128, 127
            )
            y = torch.nn.functional.linear(
                torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127), w
            )
            return self.linear(y)

    lowered = lower(torch.jit.script(FakeQuantized().eval()))
    quantized = quantize(lowered, [[torch.randn(2, 4)]])
    assert [layer.reason for layer in quantized.layers] == [
        "the module quantizes it itself",
        "",
    ]
    scales = [
        node.inputsAt(1).toIValue()
        for node in ir.nodes_of(quantized.lowered.graph, FAKE[0])
    ]
    assert {0.01, 0.05} < set(scales) and len(scales) == 3


def test_quantize_keeps_original_graph_and_records_the_pass() -> None:
    module, x, _ = products()
    lowered = lower(module)
    text = lowered.text
    quantized = quantize(lowered, [x])
    assert lowered.text == text != quantized.lowered.text
    assert "precision" in [
        record.name for record in quantized.lowered.trace[len(lowered.trace) :]
    ]


def test_calibration_depends_only_on_its_batches() -> None:
    module, x, _ = products()
    assert (
        quantize(lower(module), [x]).lowered.digest
        == quantize(lower(module), [x]).lowered.digest
    )
    assert (
        quantize(lower(module), [x]).lowered.digest
        != quantize(lower(module), [[x[0] * 2]]).lowered.digest
    )


@pytest.mark.parametrize(
    ("invalid", "words"),
    [
        ({"precision": "fp16"}, "quantizes nothing"),
        ({"method": "minmax"}, "unknown calibration method"),
        ({"precision": "fp8", "method": "entropy"}, "for int8 only"),
        ({"batches": []}, "no inputs for calibration"),
    ],
)
def test_invalid_arguments_raise_usage_error(
    invalid: dict[str, object], words: str
) -> None:
    module, x, _ = products()
    arguments: dict[str, object] = {"batches": [x], "precision": "int8", **invalid}
    with pytest.raises(UsageError, match=words):
        quantize(lower(module), **arguments)  # type: ignore[arg-type]


@pytest.mark.slow
def test_saved_fp8_graph_runs_without_trt_build(tmp_path: Path) -> None:
    module, x, _ = products()
    quantized = quantize(lower(module), [x], "fp8")
    quantized.lowered.save(tmp_path / "lowered.pt")
    torch.save((x[0], quantized.lowered.run(*x)[0]), tmp_path / "case.pt")
    code = (
        "import sys, torch; x, y = torch.load('case.pt'); z = torch.jit.load('lowered.pt')(x)[0];"
        "assert 'builder' not in sys.modules; torch.testing.assert_close(z, y)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr


def _mutate(lowered: builder.LoweredGraph, index: int, change: object) -> None:
    """Replaces an argument of the first per-channel node by `change` of its value."""
    graph = lowered.graph
    node = ir.nodes_of(graph, "aten::fake_quantize_per_channel_affine")[0]
    node.replaceInput(
        index, ir.insert_constant(graph, change(node.inputsAt(index).toIValue()), node)
    )  # type: ignore[operator]


MUTATIONS = {
    "scale too small": (1, lambda scale: scale / 4),
    "scale too large": (1, lambda scale: scale * 200),
    "scales of other channels": (1, lambda scale: scale.flip(0)),
}


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_wrong_scale_exceeds_the_tolerance(name: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
    ).eval()
    with torch.no_grad():
        net[0].weight *= torch.logspace(-1, 1, 8).reshape(8, 1, 1, 1)
    module, x = torch.jit.script(net), torch.randn(4, 3, 8, 8)
    spec = builder.TensorSpec("float32", (4, 3, 8, 8))
    quantized = quantize(lower(module), [[x]])
    right = builder.reference.run(
        builder.convert(quantized.lowered, [spec], precision="int8"), [x]
    )
    assert not parity_problems(right, [module(x)], "int8")
    _mutate(quantized.lowered, *MUTATIONS[name])
    wrong = builder.reference.run(
        builder.convert(quantized.lowered, [spec], precision="int8"), [x]
    )
    assert parity_problems(wrong, [module(x)], "int8")


@pytest.mark.skipif(
    not capabilities.current().strongly_typed,
    reason="8.6 has no scales on another axis",
)
def test_wrong_axis_exceeds_the_tolerance() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(8, 8).eval()
    with torch.no_grad():
        linear.weight *= torch.logspace(-2, 1, 8).reshape(8, 1)
    module, x = torch.jit.script(linear), torch.randn(4, 8)
    quantized = quantize(lower(module), [[x]])
    _mutate(quantized.lowered, 3, lambda axis: 1)
    conversion = builder.convert(
        quantized.lowered, [builder.TensorSpec("float32", (4, 8))], precision="int8"
    )
    assert parity_problems(builder.reference.run(conversion, [x]), [module(x)], "int8")


class Steps(nn.Module):
    """A loop whose trip count is the input's length."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = x[:, 0]
        for step in range(x.size(1)):
            state = torch.tanh(self.cell(state) + x[:, step])
        return state


class Choice(nn.Module):
    """A data-dependent branch, of which calibration runs one side."""

    def __init__(self) -> None:
        super().__init__()
        self.yes, self.no = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        return self.yes(x) if bool(flag) else self.no(x)


def test_products_in_loops_are_observed_in_every_iteration() -> None:
    torch.manual_seed(0)
    module, x = torch.jit.script(Steps().eval()), torch.randn(2, 6, 8)
    spec = builder.TensorSpec("float32", (2, "steps", 8), dims={"steps": (1, 4, 8)})
    quantized = quantize(lower(module, specs=[spec]), [[torch.randn(2, 5, 8)]])
    assert [(layer.name, layer.quantized) for layer in quantized.layers] == [
        ("cell/aten::linear_0", True)
    ]
    conversion = builder.convert(quantized.lowered, [spec], precision="int8")
    assert not parity_problems(
        builder.reference.run(conversion, [x]), [module(x)], "int8"
    )
    assert builder.build_engine(conversion)


def test_products_in_branches_without_calibration_are_not_quantized() -> None:
    module, case = (
        torch.jit.script(Choice().eval()),
        [torch.randn(2, 8), torch.tensor(True)],
    )
    specs = [builder.TensorSpec("float32", (2, 8)), builder.TensorSpec("bool", ())]
    quantized = quantize(lower(module, specs=specs), [case])
    assert [layer.reason for layer in quantized.layers] == [
        "",
        "calibration never reached it",
    ]
    conversion = builder.convert(quantized.lowered, specs, precision="int8")
    assert not parity_problems(
        builder.reference.run(conversion, case), [module(*case)], "int8"
    )
    other = [case[0], torch.tensor(False)]
    # products that are not quantized compute in half
    torch.testing.assert_close(
        builder.reference.run(conversion, other)[0],
        module(*other),
        rtol=2e-3,
        atol=2e-3,
    )


class DeadChannel(nn.Module):
    """x [batch, 8]: a row of weights so small that its scale is below float16's range."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        with torch.no_grad():
            self.first.weight[3] *= 1e-8

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("precision", ["int8", "mixed"])
def test_product_with_scale_below_float16_is_built(precision: str) -> None:
    """TensorRT builds no matrix product with scales of two dtypes."""
    torch.manual_seed(0)
    module, x = DeadChannel().eval(), torch.randn(4, 8)
    spec = builder.TensorSpec("float32", (4, 8))
    quantized = quantize(
        lower(torch.jit.script(module), specs=[spec]), [[x]], precision
    )
    conversion = builder.convert(quantized.lowered, [spec], precision=precision)
    assert all(layer.quantized for layer in quantized.layers)
    assert layer_kinds(conversion)["DEQUANTIZE"] >= 4
    assert builder.build_engine(conversion)
    assert not parity_problems(
        builder.reference.run(conversion, [x]), [module(x)], precision
    )


class ScalarResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.second(self.first(x) + residual)


def test_scalar_residual_is_rounded_in_float() -> None:
    torch.manual_seed(0)
    module, inputs = ScalarResidual().eval(), [torch.randn(2, 4, 8), torch.tensor(0.5)]
    specs = [
        builder.TensorSpec("float32", (2, 4, 8)),
        builder.TensorSpec("float32", ()),
    ]
    quantized = quantize(lower(torch.jit.script(module), specs=specs), [inputs], "int8")
    conversion = builder.convert(quantized.lowered, specs, precision="int8")
    assert builder.build_engine(conversion)
    assert not parity_problems(
        builder.reference.run(conversion, inputs), [module(*inputs)], "int8"
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("share", [1, 2], ids=["all", "every second"])
def test_weights_near_zero_have_a_scale(precision: str, share: int) -> None:
    """A scale that float32 rounds to zero makes results NaN, here of a channel of tiny weights."""
    supported(precision)
    torch.manual_seed(0)
    layer = nn.Linear(8, 4)
    with torch.no_grad():
        layer.weight[2] = 0.0
        layer.weight[2, ::share] = 1e-43
    x = torch.randn(4, 8)
    spec = builder.TensorSpec("float32", (4, 8))
    lowered = lower(torch.jit.script(layer), specs=[spec])
    quantized = quantize(lowered, [[x]], precision)
    assert quantized.layers[0].quantized
    conversion = builder.convert(quantized.lowered, [spec], precision=precision)
    (output,) = builder.reference.run(conversion, [x])
    assert float((output - layer(x).detach()).abs().max()) < 0.2


def test_activations_near_zero_have_a_scale() -> None:
    assert float(scale_of(1e-45, torch.int8)) > 0
    assert float(scale_of(0.0, torch.int8)) == 1
