"""Element-wise functions of one tensor: a table of IUnaryLayers, and functions composed of several
layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.layers import (
    choose,
    combine,
    expm1,
    floating,
    less,
    log1p,
    truncated,
    with_nan_of,
)
from builder.conversion.registry import converter, for_each
from builder.engine import ITensor

REAL = {
    "acos": "ACOS",
    "acosh": "ACOSH",
    "asin": "ASIN",
    "asinh": "ASINH",
    "atan": "ATAN",
    "atanh": "ATANH",
    "cos": "COS",
    "cosh": "COSH",
    "erf": "ERF",
    "exp": "EXP",
    "log": "LOG",
    "reciprocal": "RECIP",
    "sin": "SIN",
    "sinh": "SINH",
    "sqrt": "SQRT",
    "tan": "TAN",
}
"""One layer; integers and bools are promoted to float32."""
ANY_NUMBER = {"abs": "ABS", "neg": "NEG", "sign": "SIGN", "sgn": "SIGN"}
"""One layer, on integers too, which stay integers."""
ROUNDING = {"ceil": "CEIL", "floor": "FLOOR", "round": "ROUND"}
"""One layer; no layer for integers. ROUND rounds ties to even, as PyTorch does."""


@for_each(*REAL.items())
def _register_real(name: str, operation: str) -> None:
    @converter(f"aten::{name}")
    def real(ctx: ConversionContext, x: ITensor) -> ITensor:
        return ctx.unary(operation, floating(ctx, x))


@for_each(*ANY_NUMBER.items())
def _register_any_number(name: str, operation: str) -> None:
    @converter(f"aten::{name}")
    def number(ctx: ConversionContext, x: ITensor) -> ITensor:
        dtype = ctx.dtype(x)
        if dtype == torch.bool or (dtype == torch.uint8 and operation == "ABS"):
            return x
        return ctx.wrapped(ctx.unary(operation, x), dtype)


@for_each(*ROUNDING.items())
def _register_rounding(name: str, operation: str) -> None:
    @converter(f"aten::{name}")
    def rounding(ctx: ConversionContext, x: ITensor) -> ITensor:
        if ctx.dtype(x).is_floating_point:
            return ctx.unary(operation, x)
        return x


@for_each(
    ("log2", "LOG", 1 / math.log(2)),
    ("log10", "LOG", 1 / math.log(10)),
    ("deg2rad", None, math.pi / 180),
    ("rad2deg", None, 180 / math.pi),
)
def _register_scaled(name: str, operation: str | None, factor: float) -> None:
    @converter(f"aten::{name}")
    def scaled(ctx: ConversionContext, x: ITensor) -> ITensor:
        x = floating(ctx, x)
        return combine(ctx, "PROD", ctx.unary(operation, x) if operation else x, factor)


@converter("aten::positive")
def positive(ctx: ConversionContext, x: ITensor) -> Any:
    """x itself"""
    return x


@converter("aten::trunc", "aten::fix")
def trunc(ctx: ConversionContext, x: ITensor) -> ITensor:
    """The integer part, toward zero."""
    if ctx.dtype(x).is_floating_point:
        return truncated(ctx, x)
    return x


@converter("aten::frac")
def frac(ctx: ConversionContext, x: ITensor) -> ITensor:
    """x - trunc(x)"""
    return combine(ctx, "SUB", x, truncated(ctx, x))


@converter("aten::round.decimals")
def round_decimals(ctx: ConversionContext, x: ITensor, decimals: int) -> ITensor:
    """round(x 10^decimals) / 10^decimals"""
    if not ctx.dtype(x).is_floating_point:
        return x
    scale, unscale = ("PROD", "DIV") if decimals >= 0 else ("DIV", "PROD")
    power = 10.0 ** abs(decimals)
    return combine(
        ctx, unscale, ctx.unary("ROUND", combine(ctx, scale, x, power)), power
    )


@converter("aten::log1p", "aten::special_log1p")
def log_of_one_plus(ctx: ConversionContext, x: ITensor) -> ITensor:
    """log(1 + x), accurate for small x"""
    return log1p(ctx, floating(ctx, x))


@converter("aten::expm1", "aten::special_expm1")
def exp_minus_one(ctx: ConversionContext, x: ITensor) -> ITensor:
    """exp(x) - 1, accurate for small x"""
    return expm1(ctx, floating(ctx, x))


@converter("aten::exp2", "aten::special_exp2")
def exp2(ctx: ConversionContext, x: ITensor) -> ITensor:
    """2^x as a power: exp(x ln 2) would multiply the rounding of the product by x"""
    x = floating(ctx, x)
    return ctx.elementwise("POW", ctx.like_scalar(x, 2.0), x)


@converter("aten::sinc", "aten::special_sinc")
def sinc(ctx: ConversionContext, x: ITensor) -> ITensor:
    """sin(a) / a, a = pi x; near 0 the series 1 - a^2/6 (1 - a^2/20), because CUDA's fast sine has
    an absolute error of 2^-21 (CUDA programming guide, "Intrinsic functions"); at 0.1 the next term
    is 2e-10
    """
    angle = combine(ctx, "PROD", floating(ctx, x), math.pi)
    square = combine(ctx, "PROD", angle, angle)
    near = polynomial(ctx, (1 / 120, -1 / 6, 1.0), square)
    far = combine(ctx, "DIV", ctx.unary("SIN", angle), angle)
    return choose(ctx, less(ctx, ctx.unary("ABS", angle), 0.1), near, far)


@converter("aten::logit", "aten::special_logit")
def logit(ctx: ConversionContext, x: ITensor, eps: float | None) -> Any:
    """log(z / (1 - z)), z = x within [eps, 1 - eps]"""
    x = floating(ctx, x)
    if eps is not None:
        limited = combine(ctx, "MIN", combine(ctx, "MAX", x, eps), 1 - eps)
        x = with_nan_of(ctx, x, limited)
    return ctx.unary(
        "LOG", combine(ctx, "DIV", x, combine(ctx, "SUB", ctx.like_scalar(x, 1.0), x))
    )


ERFC = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)
"""Highest power first. Source: Press et al., Numerical Recipes, 6.2 (erfcc), relative error below
1.2e-7 everywhere.
"""


@converter("aten::erfc", "aten::special_erfc")
def erfc(ctx: ConversionContext, x: ITensor) -> ITensor:
    """t exp(-x^2 + P(t)) with t = 1 / (1 + |x| / 2), 2 minus that for negative x: 1 - erf(x) would
    cancel
    """
    x = floating(ctx, x)
    size = ctx.unary("ABS", x)
    t = ctx.unary("RECIP", combine(ctx, "SUM", combine(ctx, "PROD", size, 0.5), 1.0))
    exponent = combine(ctx, "SUB", polynomial(ctx, ERFC, t), combine(ctx, "PROD", x, x))
    tail = combine(ctx, "PROD", t, ctx.unary("EXP", exponent))
    return choose(
        ctx, less(ctx, x, 0.0), combine(ctx, "SUB", ctx.like_scalar(x, 2.0), tail), tail
    )


def polynomial(
    ctx: ConversionContext, coefficients: Sequence[float], x: ITensor
) -> ITensor:
    """The polynomial with these coefficients, highest power first, by Horner's rule."""
    result = combine(ctx, "PROD", x, coefficients[0])
    for coefficient in coefficients[1:-1]:
        result = combine(ctx, "PROD", combine(ctx, "SUM", result, coefficient), x)
    return combine(ctx, "SUM", result, coefficients[-1])
