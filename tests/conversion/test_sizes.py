"""The known sizes after a layer: those that TensorRT documents, for every object that adds the
layer.
"""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch.nn import functional as F

from builder.conversion.context import ConversionContext, axis_symbol
from builder.conversion.dynamic import bounds
from builder.conversion.sizes import propagate_sizes
from builder.engine.flavor import trt
from builder.engine.network import new_network
from tests.conversion.harness import check


@pytest.fixture
def ctx() -> ConversionContext:
    made, network, messages = new_network()
    context = ConversionContext(network, [{"n": (1, 4, 8), "m": (2, 4, 8)}], messages)
    context.keep = made  # type: ignore[attr-defined]
    return context


def add_input(ctx: ConversionContext, name: str, rank: int = 3) -> Any:
    tensor = ctx.net.add_input(f"x{name}", trt.float32, (-1, *([4] * (rank - 1))))
    ctx.facts(tensor).exprs[0] = axis_symbol(name)
    return tensor


def test_sizes_propagate_through_layers_with_own_type(
    ctx: ConversionContext,
) -> None:
    image = add_input(ctx, "n", 4)
    layers = [
        ctx.net.add_activation(image, trt.ActivationType.RELU),
        ctx.net.add_pooling_nd(image, trt.PoolingType.MAX, (2, 2)),
    ]
    # keep them: TensorRT returns these very objects, whose own `type` is the function
    for layer in layers:
        propagate_sizes(ctx, layer)
        assert ctx.expr(layer.get_output(0), 0) == axis_symbol("n")


@pytest.mark.parametrize(
    ("first", "second", "known"), [("n", "n", "n"), ("n", "m", "m"), ("m", "n", "m")]
)
def test_broadcast_size_is_the_one_above_1(
    ctx: ConversionContext, first: str, second: str, known: str
) -> None:
    a, b = add_input(ctx, first), add_input(ctx, second) if first != second else None
    layer = ctx.net.add_elementwise(
        a, b if b is not None else a, trt.ElementWiseOperation.SUM
    )
    propagate_sizes(ctx, layer)
    assert ctx.expr(layer.get_output(0), 0) == axis_symbol(known)


def test_broadcast_of_two_possible_ones_is_unknown(ctx: ConversionContext) -> None:
    tensors = [add_input(ctx, "n"), add_input(ctx, "other")]
    layer = ctx.net.add_elementwise(*tensors, trt.ElementWiseOperation.SUM)
    propagate_sizes(ctx, layer)
    assert not ctx.expr(layer.get_output(0), 0).free_symbols & {
        axis_symbol("n"),
        axis_symbol("other"),
    }


def test_skip_connection_after_resize_is_resized_again() -> None:
    def network(x: torch.Tensor) -> torch.Tensor:
        deep = F.conv2d(x, torch.ones(3, 3, 3, 3) / 27, stride=2, padding=1)
        joined = x + F.interpolate(deep, scale_factor=2.0, mode="nearest")
        return F.interpolate(joined, scale_factor=2.0, mode="nearest")

    spans = {"h": (4, 8, 16), "w": (4, 6, 16)}
    more = [(torch.randn(1, 3, 4, 16),), (torch.randn(1, 3, 16, 10),)]
    check(
        network,
        torch.randn(1, 3, 8, 6),
        dynamic={0: {2: "h", 3: "w"}},
        spans=spans,
        more=more,
    )


def test_integer_factor_needs_no_length_bound() -> None:
    def network(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        joined = x + mask  # two sizes that may be 1 each: the sum's is unknown
        return F.interpolate(joined, scale_factor=2.0, mode="nearest")

    x, mask = torch.randn(1, 2, 6), torch.randn(1, 2, 6)
    more = [(x[..., :1], mask), (x, mask[..., :1])]
    check(
        network, x, mask, dynamic={0: {2: "a"}, 1: {2: "b"}}, more=more, rtol=0, atol=0
    )


def test_maximum_of_long_expressions_is_not_simplified(
    ctx: ConversionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = ctx.size(add_input(ctx, "n"), 0)
    other = ctx.size(add_input(ctx, "m"), 0)
    monkeypatch.setattr(sympy.Max, "_is_connected", None)  # takes seconds
    longest = ctx.maximum(size - other, 0)
    assert longest.expr == ctx.maximum(size - other, 0).expr
    assert bounds(longest.expr, ctx.ranges()) == (0, 6)
    rows = longest * (size - other)  # sympy rebuilds the product in the quotient
    assert bounds((rows // 4).expr, ctx.ranges()) is not None
