"""Test the harness: an ordinary check must detect converters that are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from builder.conversion.layers import activate, combine
from builder.conversion.registry import CONVERTERS
from tests.conversion.harness import check

X = torch.tensor([[-2.2, 0.3, 1.4], [0.5, -0.7, 2.2], [3.1, -1.6, 0.9]])
Y = torch.tensor([[1.5, -0.4, 2.0], [-3.0, 0.8, 1.1], [0.6, 2.5, -1.2]])
IMAGE = torch.arange(2 * 3 * 5 * 5, dtype=torch.float32).reshape(2, 3, 5, 5).sin()
Broken = Callable[..., Any]


def swapped(build: Broken) -> Broken:
    """The first two arguments in the other order."""
    return lambda ctx, node, a, b, *rest: build(ctx, node, b, a, *rest)


def argument(index: int, change: Callable[[Any], Any]) -> Callable[[Broken], Broken]:
    """One argument changed."""

    def breaks(build: Broken) -> Broken:
        def broken(ctx: Any, node: Any, *values: Any) -> Any:
            return build(
                ctx, node, *values[:index], change(values[index]), *values[index + 1 :]
            )

        return broken

    return breaks


def instead(build: Broken) -> Callable[[Broken], Broken]:
    """Another converter altogether."""
    return lambda _: build


def one_more(values: list[int]) -> list[int]:
    return [values[0] + 1, *values[1:]]


other_axis = argument(1, lambda axis: 0 if axis in (1, -1) else 1)
other_axes = argument(1, lambda axes: [0 if axis in (1, -1) else 1 for axis in axes])


@dataclass(frozen=True)
class Mutation:
    """A converter, its mutation, and the check that must detect it."""

    key: str
    breaks: Callable[[Broken], Broken]
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...] = (X,)
    what: str = ""


MUTATIONS = [
    *(
        Mutation(f"aten::{name}", swapped, function, (X, Y), "swapped operands")
        for name, function in {
            "sub.Tensor": torch.sub,
            "div.Tensor": torch.div,
            "atan2": torch.atan2,
            "lt.Tensor": torch.lt,
            "fmod.Tensor": torch.fmod,
            "remainder.Tensor": torch.remainder,
            "matmul": torch.matmul,
        }.items()
    ),
    Mutation(
        "aten::pow.Tensor_Tensor", swapped, torch.pow, (X.abs(), Y), "swapped operands"
    ),
    *(
        Mutation(f"aten::{name}", change, function, what="wrong axis")
        for name, (change, function) in {
            "softmax.int": (other_axis, lambda x: torch.softmax(x, 1)),
            "cumsum": (other_axis, lambda x: torch.cumsum(x, 0)),
            "argmax": (other_axis, lambda x: torch.argmax(x, 1)),
            "max.dim": (other_axis, lambda x: torch.max(x, 0)),
            "prod.dim_int": (other_axis, lambda x: torch.prod(x, 1)),
            "any.dim": (other_axis, lambda x: torch.any(x > 1, 0)),
            "sum.dim_IntList": (other_axes, lambda x: torch.sum(x, 1)),
            "mean.dim": (other_axes, lambda x: torch.mean(x, 0)),
            "amax": (other_axes, lambda x: torch.amax(x, 1)),
            "logsumexp": (other_axes, lambda x: torch.logsumexp(x, 1)),
            "var.correction": (other_axes, lambda x: torch.var(x, 0, correction=1)),
        }.items()
    ),
    Mutation(
        "aten::glu",
        other_axis,
        lambda x: F.glu(x, 1),
        (torch.arange(16.0).reshape(4, 4).sin(),),
        "wrong axis",
    ),
    Mutation(
        "aten::gelu",
        argument(1, lambda _: "tanh"),
        F.gelu,
        what="tanh instead of exact gelu",
    ),
    Mutation(
        "aten::gelu",
        argument(1, lambda _: "none"),
        lambda x: F.gelu(x, approximate="tanh"),
        what="the converse",
    ),
    Mutation(
        "aten::elu",
        argument(2, lambda _: 1),
        lambda x: torch.ops.aten.elu(x, 1.0, 1.1, 1.0),
        what="no scale",
    ),
    Mutation(
        "aten::elu",
        argument(3, lambda _: 1),
        lambda x: torch.ops.aten.elu(x, 1.0, 1.0, 0.9),
        what="no input scale",
    ),
    Mutation(
        "aten::leaky_relu",
        argument(1, lambda s: s * 1.001),
        F.leaky_relu,
        what="a slope off by a thousandth",
    ),
    Mutation(
        "aten::softplus",
        argument(1, lambda _: 1),
        lambda x: F.softplus(x, 1.01),
        what="no beta",
    ),
    Mutation(
        "aten::hardtanh",
        argument(2, lambda v: v + 0.1),
        lambda x: F.hardtanh(x, -1, 2),
        what="a limit off",
    ),
    Mutation(
        "aten::sigmoid",
        instead(lambda ctx, node, x: activate(ctx, x, "HARD_SIGMOID", 0.25, 0.5)),
        torch.sigmoid,
        what="another activation",
    ),
    Mutation(
        "aten::round",
        instead(lambda ctx, node, x: ctx.unary("FLOOR", combine(ctx, "SUM", x, 0.5))),
        torch.round,
        (torch.tensor([0.5, 1.5, 2.5]),),
        "ties away from even",
    ),
    Mutation(
        "aten::div.Tensor_mode",
        argument(2, lambda _: "trunc"),
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        (torch.tensor([-7, 7]), torch.tensor([2, 2])),
        "the wrong rounding of negative integers",
    ),
    Mutation(
        "aten::var.correction",
        argument(2, lambda _: 0),
        lambda x: torch.var(x, 1, correction=1),
        what="no correction",
    ),
    Mutation(
        "aten::topk",
        argument(3, lambda v: not v),
        lambda x: torch.topk(x, 2),
        what="smallest for largest",
    ),
    Mutation(
        "aten::sum.dim_IntList",
        argument(2, lambda v: not v),
        lambda x: torch.sum(x, 0, True),
        what="no kept axis",
    ),
    Mutation(
        "aten::batch_norm",
        argument(7, lambda eps: eps * 100),
        lambda x: F.batch_norm(x, X[0], X[0].abs(), eps=1e-4),
        (IMAGE,),
        "another epsilon",
    ),
    Mutation(
        "aten::batch_norm",
        argument(1, lambda w: w.flip(0)),
        lambda x: F.batch_norm(x, X[0], X[0].abs(), X[1]),
        (IMAGE,),
        "the channels' weights in another order",
    ),
    Mutation(
        "aten::layer_norm",
        argument(4, lambda e: e * 1000),
        lambda x: F.layer_norm(x, (3,)),
        what="another epsilon",
    ),
    Mutation(
        "aten::group_norm",
        argument(1, lambda _: 1),
        lambda x: F.group_norm(x, 3),
        (IMAGE,),
        "one group",
    ),
    Mutation(
        "aten::where.self",
        lambda build: lambda ctx, node, c, a, b: build(ctx, node, c, b, a),
        lambda x, y: torch.where(x > 0, x, y),
        (X, Y),
        "swapped choices",
    ),
    Mutation(
        "aten::clamp",
        argument(1, lambda v: int(v)),
        lambda x: x.clamp(0.5, 2),
        (torch.tensor([0, 3]),),
        "whole limits",
    ),
    Mutation(
        "aten::constant_pad_nd",
        argument(1, one_more),
        lambda x: F.pad(x, (1, 2)),
        what="padding off by one",
    ),
    Mutation(
        "aten::constant_pad_nd",
        argument(1, lambda p: [p[1], p[0], *p[2:]]),
        lambda x: F.pad(x, (1, 2)),
        what="padding at the other end",
    ),
]


@pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=lambda m: f"{m.key.removeprefix('aten::')}: {m.what}"
)
def test_broken_converter_is_detected(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    # unchanged, it passes
    check(mutation.function, *mutation.inputs, rtol=1e-5, atol=1e-5, compile=False)
    whole = CONVERTERS[mutation.key]
    calls: list[str] = []

    def build(ctx: Any, node: Any, *values: Any) -> Any:
        names = (name for name, _ in whole.arguments)
        arguments = dict(zip(names, values, strict=True))
        return whole.signature.call(whole.build, ctx, node, arguments)

    def broken(ctx: Any, node: Any, *values: Any) -> Any:
        calls.append(mutation.key)
        return mutation.breaks(build)(ctx, node, *values)

    monkeypatch.setitem(CONVERTERS, mutation.key, replace(whole, build=broken))
    with pytest.raises(AssertionError):
        check(mutation.function, *mutation.inputs, rtol=1e-5, atol=1e-5, compile=False)
    assert calls, "the graph never reached the converter: nothing was tested"
