"""Fake quantization stays in the lowered graph: weights are unrounded constants beside their
scales, and enabled observers are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization as quantization
from torch import nn
from torch.ao.quantization import FakeQuantize, FusedMovingAvgObsFakeQuantize
from torch.nn import functional

import builder
from builder.errors import LoweringError
from builder.lowering import ir
from tests.torchscript.saving import saved

# torch.ao warns of its deprecation, and tracing warns of its flags.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
TENSOR, CHANNEL = (
    "aten::fake_quantize_per_tensor_affine",
    "aten::fake_quantize_per_channel_affine",
)
_CHANNEL_OBSERVER = {
    FakeQuantize: quantization.PerChannelMinMaxObserver,
    FusedMovingAvgObsFakeQuantize: quantization.MovingAveragePerChannelMinMaxObserver,
}


def _fake(kind: Any, by_channel: bool) -> nn.Module:
    observer = (
        _CHANNEL_OBSERVER[kind]
        if by_channel
        else quantization.MovingAverageMinMaxObserver
    )
    scheme = torch.per_channel_symmetric if by_channel else torch.per_tensor_affine
    fake: nn.Module = kind(observer, -128, 127, dtype=torch.qint8, qscheme=scheme)
    return fake


class Simulated(nn.Module):
    """A convolution with quantized input and weight; its batch norm is folded into the weight."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.weights, self.values = _fake(kind, True), _fake(kind, False)

    def forward(self, x):
        weight = self.conv.weight * (
            self.bn.weight / torch.sqrt(self.bn.running_var + 1e-5)
        ).reshape(-1, 1, 1, 1)
        return self.bn(
            functional.conv2d(self.values(x), self.weights(weight), self.conv.bias)
        )


def _trained(kind: Any) -> Simulated:
    torch.manual_seed(0)
    model = Simulated(kind)
    model(torch.randn(4, 2, 8, 8))
    return model.eval()


def _exported(model: nn.Module, how: str) -> Any:
    return (
        torch.jit.script(model)
        if how == "script"
        else torch.jit.trace(model, X, check_trace=False)
    )


X = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(1))
KINDS = pytest.mark.parametrize("kind", [FakeQuantize, FusedMovingAvgObsFakeQuantize])
HOW = pytest.mark.parametrize("how", ["script", "trace"])


@KINDS
@HOW
def test_fake_quantized_weights_stay_unrounded(kind: Any, how: str) -> None:
    model = _trained(kind)
    model.apply(quantization.disable_observer)
    lowered = builder.lower(saved(_exported(model, how)))
    (values,), (weights,) = (
        ir.nodes_of(lowered.graph, kind) for kind in (TENSOR, CHANNEL)
    )
    assert [type(ir.constant(v)) for v in ir.inputs(values)[1:]] == [
        float,
        int,
        int,
        int,
    ]
    assert [type(ir.constant(v)) for v in weights.inputs()] == [torch.Tensor] * 3 + [
        int
    ] * 3
    torch.testing.assert_close(lowered.run(X)[0], model(X), rtol=0, atol=0)


@KINDS
@HOW
def test_enabled_observer_is_refused_by_name(kind: Any, how: str) -> None:
    with pytest.raises(
        LoweringError, match=r"enabled observer|changes a constant"
    ) as caught:
        builder.lower(_exported(_trained(kind), how))
    assert "torch.ao.quantization.disable_observer" in caught.value.fix
    assert (
        "torch/ao/quantization" if how == "script" else "in module values"
    ) in caught.value.where


@KINDS
def test_disabled_fake_quantization_is_removed(kind: Any) -> None:
    model = _trained(kind)
    model.apply(quantization.disable_observer).apply(quantization.disable_fake_quant)
    lowered = builder.lower(torch.jit.script(model))
    assert not ir.nodes_of(lowered.graph, TENSOR, CHANNEL)
    torch.testing.assert_close(lowered.run(X)[0], model(X), rtol=0, atol=0)


def test_model_of_prepare_qat_keeps_fake_quantization() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(108, 5),
    ).train()
    model = quantization.fuse_modules_qat(model, [["0", "1", "2"]])
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    model = quantization.prepare_qat(model)
    model(X)
    model.eval().apply(quantization.disable_observer)
    lowered = builder.lower(torch.jit.trace(model, X, check_trace=False))
    assert (
        len(ir.nodes_of(lowered.graph, CHANNEL)) == 2
        and len(ir.nodes_of(lowered.graph, TENSOR)) == 2
    )
    assert not ir.nodes_of(
        lowered.graph, "aten::copy_", "aten::fused_moving_avg_obs_fake_quant"
    )
    torch.testing.assert_close(lowered.run(X)[0], model(X), rtol=0, atol=0)


W = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
S, Z, ON = torch.tensor([0.02]), torch.tensor([3], dtype=torch.int32), torch.tensor([1])
OFF, LEAST, MOST = torch.tensor([0]), torch.tensor(-1.0), torch.tensor(1.0)
ROWS, ZEROS = (
    torch.tensor([0.02, 0.03, 0.04]),
    torch.tensor([0, 1, -2], dtype=torch.int32),
)
LEARNED = torch.tensor([2.5, -0.6, 300.0])
ops: Any = torch.ops.aten
FORMS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "number scale": (
        TENSOR,
        lambda w: torch.fake_quantize_per_tensor_affine(w, 0.02, 3, -128, 127),
    ),
    "tensor scale": (
        TENSOR,
        lambda w: torch.fake_quantize_per_tensor_affine(w, S, Z, -128, 127),
    ),
    "per channel": (
        CHANNEL,
        lambda w: torch.fake_quantize_per_channel_affine(w, ROWS, ZEROS, 0, -128, 127),
    ),
    "cachemask": (
        TENSOR,
        lambda w: ops.fake_quantize_per_tensor_affine_cachemask(w, 0.02, 3, -128, 127)[
            0
        ],
    ),
    "per channel, cachemask": (
        CHANNEL,
        lambda w: ops.fake_quantize_per_channel_affine_cachemask(
            w, ROWS, ZEROS, 0, -128, 127
        )[0],
    ),
    "cachemask with tensor scale": (
        TENSOR,
        lambda w: ops._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            w, S, Z, ON, -128, 127
        )[0],
    ),
    "learnable": (
        TENSOR,
        lambda w: ops._fake_quantize_learnable_per_tensor_affine(
            w, S, LEARNED[:1], -128, 127, 1.0
        ),
    ),
    "learnable per channel": (
        CHANNEL,
        lambda w: ops._fake_quantize_learnable_per_channel_affine(
            w, ROWS, LEARNED, 0, -128, 127, 1.0
        ),
    ),
    "observer helper": (
        TENSOR,
        lambda w: ops._fused_moving_avg_obs_fq_helper(
            w, OFF, ON, LEAST, MOST, S, Z, 0.01, -128, 127, 0
        )[0],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_fake_quantize_operator_becomes_one_of_two(form: str) -> None:
    """Applied to a weight: all operands are constants, and the operator stays."""
    kind, function = FORMS[form]
    graph = torch.jit.trace(
        lambda x: functional.linear(x, function(W)), torch.ones(2, 4), check_trace=False
    ).graph
    lowered = builder.lower(graph)
    assert len(ir.nodes_of(lowered.graph, kind)) == 1
    node_kinds = [
        node.kind()
        for node in ir.walk(lowered.graph)
        if node.kind().startswith("aten::")
    ]
    assert set(node_kinds) == {kind, "aten::linear"}
    torch.testing.assert_close(
        lowered.run(torch.ones(2, 4))[0],
        functional.linear(torch.ones(2, 4), function(W)),
    )


def test_pairs_of_quantize_and_dequantize_stay() -> None:
    def f(x):
        weight = torch.quantize_per_channel(
            W * 2, ROWS, ZEROS, 0, torch.qint8
        ).dequantize()
        return functional.linear(
            torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), weight
        )

    x = torch.randn(2, 4)
    lowered = builder.lower(torch.jit.trace(f, x, check_trace=False).graph)
    kinds = [
        node.kind() for node in ir.walk(lowered.graph) if "quantize" in node.kind()
    ]
    assert sorted(kinds) == ["aten::dequantize"] * 2 + [
        "aten::quantize_per_channel",
        "aten::quantize_per_tensor",
    ]
    torch.testing.assert_close(lowered.run(x)[0], f(x), rtol=0, atol=0)


def test_kernel_size_is_inferred_through_fake_quantization() -> None:
    def f(x):
        weight = torch.fake_quantize_per_tensor_affine(W[None], 0.02, 3, -128, 127)
        return torch.conv1d(x, weight, None, 1, "same")

    x = torch.randn(2, 3, 9)
    lowered = builder.lower(torch.jit.trace(f, x, check_trace=False).graph)
    assert (
        lowered.graph.findNode("aten::_convolution") is not None
        and lowered.graph.findNode(TENSOR) is not None
    )
    torch.testing.assert_close(lowered.run(x)[0], f(x), rtol=1e-5, atol=1e-6)


class Counting(nn.Module):
    """Writes a constant that no other node reads: torch's dead code elimination would remove the
    write.
    """

    def __init__(self, branch: bool) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("on", torch.ones(1))
        self.branch = branch

    def forward(self, x):
        if self.on[0] == 1:
            chosen = x if self.branch else self.count
            chosen.view(-1)[:3].add_(1)
            self.count.copy_(x.sum())
        return x + self.count


@pytest.mark.parametrize("branch", [True, False])
def test_write_to_buffer_is_refused_in_folded_branch(branch: bool) -> None:
    with pytest.raises(LoweringError, match="changes a constant of the model"):
        builder.lower(torch.jit.script(Counting(branch).eval()))
