"""Activations against torch: parameters, ranks, dtypes, and the values where formulas part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.conversion.harness import check

X = torch.tensor(
    [
        [-30.0, -6.5, -3.0, -1.0],
        [-0.5, -1e-3, 0.0, 1e-3],
        [0.5, 1.0, 3.0, 6.5],
        [20.5, 25.0, 60.0, 90.0],
    ]
)

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "leaky_relu, negative": lambda x: F.leaky_relu(x, -0.2),
    "rrelu": lambda x: torch.rrelu(x, 0.1, 0.3, training=False),
    "elu": lambda x: F.elu(x, 1.7),
    "elu, all scales": lambda x: torch.ops.aten.elu(x, 1.7, 1.3, 0.6),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.0),
    "celu, alpha": lambda x: F.celu(x, 2.5),
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softplus, beta": lambda x: F.softplus(x, 2.0, 5.0),
    "softsign": F.softsign,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": lambda x: F.hardshrink(x, 1.0),
    "softshrink": lambda x: F.softshrink(x, 0.6),
    "threshold": lambda x: F.threshold(x, 0.5, -7.0),
    "logsigmoid": F.logsigmoid,
    "glu": F.glu,
    "glu, first axis": lambda x: F.glu(x, 0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_dynamic_shapes(name: str) -> None:
    dynamic = {0: {1: "n"}} if name == "glu, first axis" else {0: {0: "n"}}
    more = [(X[:, :1],)] if name == "glu, first axis" else [(X[:1],), (X[:3] * 0.1,)]
    check(ACTIVATIONS[name], X, dynamic=dynamic, more=more)


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if not n.startswith("glu")])
@pytest.mark.parametrize("shape", [(), (4,), (2, 1, 2, 2, 2)])
def test_ranks(name: str, shape: tuple[int, ...]) -> None:
    check(
        ACTIVATIONS[name],
        X.flatten()[: max(torch.Size(shape).numel(), 1)].reshape(shape),
        compile=False,
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_halves(name: str) -> None:
    """The composed ones round after each of up to six layers: 6 * 2^-11 relative."""
    check(ACTIVATIONS[name], (X / 8).half(), rtol=4e-3, atol=4e-3, compile=False)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8, torch.uint8])
def test_relu_keeps_integers(dtype: torch.dtype) -> None:
    values = torch.tensor(
        [0, 1, 3, 200] if dtype == torch.uint8 else [0, -1, 3, -100], dtype=dtype
    )
    check(torch.relu, values)
    check(F.relu6, values)


@pytest.mark.parametrize(
    "shape", [(3,), (2, 3), (2, 3, 4), (1, 3, 2, 2), (2, 3, 1, 2, 2)]
)
def test_prelu_with_one_slope_or_one_per_channel(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    check(lambda x: F.prelu(x, torch.tensor([0.3])), x)
    if len(shape) > 1:
        check(
            lambda x: F.prelu(x, torch.tensor([0.3, -0.1, 2.0])),
            x,
            dynamic={0: {0: "n"}},
        )
        check(F.prelu, x, torch.tensor([0.3, -0.1, 2.0]))


def test_exact_gelu_is_not_its_approximation() -> None:
    """They differ by 5e-4 near 2.2; a tolerance of 1e-6 tells them apart."""
    check(F.gelu, torch.tensor([-2.2, 2.2, 0.7]))


def test_nan_stays_nan() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    for name in (
        "hardshrink",
        "softshrink",
        "threshold",
        "softplus",
        "hardtanh",
        "relu",
    ):
        check(ACTIVATIONS[name], nan, compile=False)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_composed_where_tensorrt_has_no_such_activation(
    approximate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT 8.6 has none: the composition gives the same numbers. erf cancels against 1 below
    -3: 1e-6 absolute.
    """
    from builder.engine.capabilities import Capabilities

    real = Capabilities.has_operation
    monkeypatch.setattr(
        Capabilities,
        "has_operation",
        lambda self, layer, name: (
            not name.startswith("GELU") and real(self, layer, name)
        ),
    )
    conversion = check(lambda x: F.gelu(x, approximate=approximate), X / 4)
    assert conversion.network.num_layers > 3
