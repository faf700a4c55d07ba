"""Activations, softmax included: one layer if TensorRT has it, else a few element-wise layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.converters.casting import in_dtype
from builder.conversion.layers import (
    NAN_UNDEFINED,
    activate,
    choose,
    combine,
    comparison,
    expm1,
    floating,
)
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Tensor
from builder.engine import ITensor


@for_each(
    ("tanh", "TANH"),
    ("sigmoid", "SIGMOID"),
    ("special_expit", "SIGMOID"),
    (
        "selu",
        "SELU",
        1.6732632423543772848170429916717,
        1.0507009873554804934193349852946,
    ),
    ("hardsigmoid", "HARD_SIGMOID", 1 / 6, 0.5),
)
def _register(
    name: str, activation: str, alpha: float | None = None, beta: float | None = None
) -> None:
    note = NAN_UNDEFINED if activation == "HARD_SIGMOID" else ""

    @converter(f"aten::{name}", note=note)
    def plain(ctx: ConversionContext, x: ITensor) -> ITensor:
        return activate(ctx, floating(ctx, x), activation, alpha, beta)


@converter("aten::relu", note=NAN_UNDEFINED)
def relu(ctx: ConversionContext, x: ITensor) -> ITensor:
    """max(x, 0); integers stay integers"""
    if ctx.dtype(x).is_floating_point:
        return activate(ctx, x, "RELU")
    return combine(ctx, "MAX", x, 0)


@converter("aten::relu6", note=NAN_UNDEFINED)
def relu6(ctx: ConversionContext, x: ITensor) -> ITensor:
    """x within [0, 6]"""
    return clip(ctx, x, 0, 6)


@converter("aten::hardtanh", note=NAN_UNDEFINED)
def clip(ctx: ConversionContext, x: ITensor, low: Any, high: Any, /) -> ITensor:
    """x within [low, high]: one CLIP; for integers and infinite limits, which it does not support,
    MAX and MIN. The upper limit wins over the lower.
    """
    is_float = ctx.dtype(x).is_floating_point
    if is_float and -math.inf < low <= high < math.inf:
        return activate(ctx, x, "CLIP", low, high)
    if not is_float:
        low, high = int(low), int(high)
    return combine(ctx, "MIN", combine(ctx, "MAX", x, low), high)


@converter("aten::leaky_relu")
def leaky_relu(ctx: ConversionContext, x: ITensor, negative_slope: float) -> ITensor:
    """x where x > 0, else negative_slope * x"""
    return activate(ctx, x, "LEAKY_RELU", negative_slope)


@converter(
    "aten::rrelu",
    when=lambda ctx, a: "the slope is random while training" if a.training else None,
)
def rrelu(ctx: ConversionContext, x: ITensor, lower: float, upper: float) -> ITensor:
    """leaky_relu with the mean of the two slopes"""
    return activate(ctx, x, "LEAKY_RELU", (lower + upper) / 2)


@converter("aten::prelu", "aten::_prelu_kernel")
def prelu(ctx: ConversionContext, x: ITensor, weight: Tensor) -> ITensor:
    """x where x > 0, else weight * x; one weight, or one for each channel (the second axis)"""
    if isinstance(weight, torch.Tensor) and weight.numel() == 1:
        return activate(ctx, x, "LEAKY_RELU", weight.item())
    if ctx.rank(weight) == 1:  # the weight of _prelu_kernel already has the rank of x
        sizes: list[Any] = [1] * max(ctx.rank(x), 1)
        sizes[min(1, len(sizes) - 1)] = ctx.size(weight, 0)
        if isinstance(weight, torch.Tensor):
            weight = weight.reshape(sizes)
        else:
            weight = ctx.reshape(weight, sizes)
    # some versions want "at least 1 dimensions"
    wide, weight = ctx.operands(ctx.at_rank(x, 1), weight, dtype=ctx.dtype(x))
    result = ctx.net.add_parametric_relu(wide, weight).get_output(0)
    if ctx.rank(x):
        return result
    return ctx.squeeze(result, [0])


@converter("aten::elu")
def elu(
    ctx: ConversionContext, x: ITensor, alpha: float, scale: float, input_scale: float
) -> ITensor:
    """scale x where x > 0, else scale alpha (exp(input_scale x) - 1)"""
    if input_scale == 1:
        result = activate(ctx, x, "ELU", alpha)
    else:
        below = combine(
            ctx, "PROD", expm1(ctx, combine(ctx, "PROD", x, input_scale)), alpha
        )
        result = choose(ctx, comparison(ctx, "le", x, 0.0), below, x)
    if scale == 1:
        return result
    return combine(ctx, "PROD", result, scale)


@converter("aten::celu")
def celu(ctx: ConversionContext, x: ITensor, alpha: float) -> ITensor:
    """x where x > 0, else alpha (exp(x / alpha) - 1)"""
    if alpha == 1:
        return activate(ctx, x, "ELU", 1.0)
    below = combine(ctx, "PROD", expm1(ctx, combine(ctx, "DIV", x, alpha)), alpha)
    return choose(ctx, comparison(ctx, "le", x, 0.0), below, x)


@converter("aten::gelu")
def gelu(ctx: ConversionContext, x: ITensor, approximate: str) -> Any:
    """x Phi(x), with erf exactly or by its tanh approximation"""
    name = "GELU_TANH" if approximate == "tanh" else "GELU_ERF"
    if ctx.capabilities.has_operation("ACTIVATION", name):
        return activate(ctx, x, name)
    return _COMPOSED_GELU[name](ctx, x)


def gelu_erf(ctx: ConversionContext, x: ITensor) -> ITensor:
    """x (erf(x / sqrt 2) / 2 + 1/2), if TensorRT has no such activation.

    For (x / 2) (1 + erf(x / sqrt 2)) TensorRT 8.6 has a slower kernel: 72 us instead of 58 in half
    precision (BERT-base, 32 sequences of 384 tokens, H200).
    """
    erf = ctx.unary("ERF", combine(ctx, "PROD", x, math.sqrt(0.5)))
    phi = combine(ctx, "SUM", combine(ctx, "PROD", erf, 0.5), 0.5)
    return combine(ctx, "PROD", x, phi)


def gelu_tanh(ctx: ConversionContext, x: ITensor) -> ITensor:
    """x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))"""
    cube = combine(
        ctx, "PROD", combine(ctx, "PROD", x, x), combine(ctx, "PROD", x, 0.044715)
    )
    inner = combine(ctx, "PROD", combine(ctx, "SUM", x, cube), math.sqrt(2 / math.pi))
    tanh = activate(ctx, inner, "TANH")
    return combine(
        ctx, "PROD", combine(ctx, "PROD", x, 0.5), combine(ctx, "SUM", tanh, 1.0)
    )


_COMPOSED_GELU: dict[str, Callable[[ConversionContext, Any], Any]] = {
    "GELU_ERF": gelu_erf,
    "GELU_TANH": gelu_tanh,
}


@converter("aten::softplus")
def softplus(
    ctx: ConversionContext, x: ITensor, beta: float, threshold: float
) -> ITensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold, where exp might overflow"""
    soft = activate(ctx, x, "SOFTPLUS", 1 / beta, beta)
    scaled = x
    if beta != 1:
        scaled = combine(ctx, "PROD", x, beta)
    return choose(ctx, comparison(ctx, "gt", scaled, float(threshold)), x, soft)


@converter("aten::mish")
def mish(ctx: ConversionContext, x: ITensor) -> ITensor:
    """x tanh(softplus(x))"""
    return combine(ctx, "PROD", x, activate(ctx, softplus(ctx, x, 1.0, 20.0), "TANH"))


@converter("aten::log_sigmoid")
def log_sigmoid(ctx: ConversionContext, x: ITensor) -> ITensor:
    """min(x, 0) - log(1 + exp(-|x|)), which neither overflows nor takes the logarithm of 0"""
    soft = activate(ctx, ctx.unary("NEG", ctx.unary("ABS", x)), "SOFTPLUS", 1.0, 1.0)
    return combine(ctx, "SUB", combine(ctx, "MIN", x, 0.0), soft)


@converter("aten::hardswish")
def hardswish(ctx: ConversionContext, x: ITensor) -> ITensor:
    """x within(0, x / 6 + 1/2, 1)"""
    return combine(ctx, "PROD", x, activate(ctx, x, "HARD_SIGMOID", 1 / 6, 0.5))


@converter("aten::hardshrink")
def hardshrink(ctx: ConversionContext, x: ITensor, lambd: float) -> ITensor:
    """0 where |x| <= lambd, else x"""
    return choose(ctx, comparison(ctx, "le", ctx.unary("ABS", x), float(lambd)), 0.0, x)


@converter("aten::softshrink")
def softshrink(ctx: ConversionContext, x: ITensor, lambd: float) -> ITensor:
    """x - lambd where x > lambd, x + lambd where x < -lambd, else 0"""
    return combine(ctx, "SUB", x, clip(ctx, x, -lambd, lambd))


@converter("aten::threshold")
def threshold(
    ctx: ConversionContext, x: ITensor, threshold: float, value: float
) -> ITensor:
    """value where x <= threshold, else x"""
    dtype = ctx.dtype(x)
    if not dtype.is_floating_point:  # torch casts both to self's dtype
        threshold = int(threshold)
        value = int(value)
    return choose(ctx, comparison(ctx, "le", x, threshold), value, x, dtype)


def _even_axis(ctx: ConversionContext, arguments: SimpleNamespace) -> str | None:
    size = ctx.size(arguments.self, arguments.dim)
    odd = isinstance(size, int) and size % 2
    if odd:
        return f"axis {arguments.dim} has {size} elements and cannot be halved"
    return None


@converter("aten::glu", when=_even_axis)
def glu(ctx: ConversionContext, x: ITensor, dim: int) -> ITensor:
    """a * sigmoid(b) for the halves a and b of dim"""
    axis = ctx.axis(x, dim)
    sizes = ctx.sizes(x)
    sizes[axis] //= 2
    starts: list[Any] = [0] * len(sizes)
    first = ctx.slice(x, starts, sizes)
    starts[axis] = sizes[axis]
    second = ctx.slice(x, starts, sizes)
    return combine(ctx, "PROD", first, activate(ctx, second, "SIGMOID"))


@converter("aten::softmax.int", "aten::special_softmax")
def softmax(ctx: ConversionContext, x: ITensor, dim: int, dtype: int | None) -> ITensor:
    """exp(x) / sum(exp(x)) along an axis"""
    return softmax_layer(ctx, in_dtype(ctx, x, dtype), dim)


@converter("aten::_softmax")
def half_softmax(
    ctx: ConversionContext, x: ITensor, dim: int, half_to_float: bool
) -> Any:
    """softmax, with a float32 result for half if requested"""
    return softmax_layer(
        ctx, in_dtype(ctx, x, torch.float32 if half_to_float else None), dim
    )


def softmax_layer(ctx: ConversionContext, x: ITensor, dim: int) -> ITensor:
    """One ISoftMaxLayer. It requires two axes, so a vector becomes a matrix of one row."""
    rank = ctx.rank(x)
    axis = ctx.axis(x, dim)
    wide = ctx.at_rank(x, 2)
    layer = ctx.net.add_softmax(wide)
    layer.axes = 1 << (axis + ctx.rank(wide) - max(rank, 1))
    result = ctx.copy_sizes(wide, layer.get_output(0))
    if rank < 2:
        return ctx.squeeze(result, list(range(2 - rank)))
    return result
