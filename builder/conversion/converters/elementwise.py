"""Arithmetic, comparison and selection of several tensors, with PyTorch's promotion and
broadcasting.
"""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.layers import (
    HALVES,
    choose,
    combine,
    comparison,
    computed_in,
    equal,
    extremum,
    half_as_float32,
    less,
    to_result_dtype,
)
from builder.conversion.registry import converter, for_each
from builder.conversion.scalars import COMPARISON
from builder.conversion.values import Number, Operand, Scalar, Tensor
from builder.engine import ITensor

EXTREMA = {
    "maximum": "MAX",
    "max.other": "MAX",
    "minimum": "MIN",
    "min.other": "MIN",
}


@converter("aten::mul.Tensor", "aten::mul.Scalar")
def product(ctx: ConversionContext, x: Tensor, other: Operand) -> ITensor:
    return combine(ctx, "PROD", x, other)


@for_each(*EXTREMA.items())
def _register_extremum(name: str, operation: str) -> None:
    @converter(f"aten::{name}")
    def of_two(ctx: ConversionContext, x: Tensor, other: Tensor) -> ITensor:
        """The larger or the smaller; NaN if one of them is NaN"""
        return extremum(ctx, operation, x, other)


def _scaled(
    ctx: ConversionContext, x: Operand, alpha: Scalar, dtype: torch.dtype
) -> Any:
    if not isinstance(alpha, DynamicScalar) and alpha == 1:
        return x
    return ctx.elementwise("PROD", *ctx.operands(x, alpha, dtype=dtype))


@for_each(
    ("add", "SUM", "self + alpha * other"),
    ("sub", "SUB", "self - alpha * other"),
    ("rsub", "SUB", "other - alpha * self"),
)
def _register_linear(name: str, operation: str, formula: str) -> None:
    @converter(f"aten::{name}.Tensor", f"aten::{name}.Scalar")
    def linear(
        ctx: ConversionContext, x: Tensor, other: Operand, alpha: Scalar
    ) -> ITensor:
        dtype = ctx.promoted(x, other)
        computed = computed_in(dtype)
        first, second = (other, x) if name == "rsub" else (x, other)
        scaled = _scaled(ctx, second, alpha, computed)
        result = ctx.elementwise(
            operation, *ctx.operands(first, scaled, dtype=computed)
        )
        return to_result_dtype(ctx, result, computed, dtype)

    linear.__doc__ = formula


@for_each(*COMPARISON)
def _register_comparison(name: str) -> None:
    @converter(f"aten::{name}.Tensor", f"aten::{name}.Scalar")
    def compare(ctx: ConversionContext, x: Tensor, other: Operand) -> ITensor:
        return comparison(ctx, name, x, other)


@converter("aten::atan2")
def atan2(ctx: ConversionContext, y: Tensor, /, other: Tensor) -> ITensor:
    """The angle of the point (x, y): atan(|y| / |x|), moved to its quadrant; signed zeros are
    respected
    """
    dtype = ctx.promoted(y, other)
    y, other = ctx.operands(
        y, other, dtype=dtype if dtype.is_floating_point else torch.float32
    )
    height = ctx.unary("ABS", y)
    width = ctx.unary("ABS", other)
    # |y| = |x| is 45 degrees, also for inf/inf; for two zeros it is 0
    ratio = choose(
        ctx,
        equal(ctx, height, width),
        ctx.unary("SIGN", width),
        combine(ctx, "DIV", height, width),
    )
    # an engine's |0| may be -0, whose quotient is -inf
    angle = ctx.unary("ABS", ctx.unary("ATAN", ratio))
    turned = combine(ctx, "SUB", ctx.like_scalar(angle, torch.pi), angle)
    angle = choose(ctx, negative(ctx, other), turned, angle)
    return choose(ctx, negative(ctx, y), ctx.unary("NEG", angle), angle)


def negative(ctx: ConversionContext, x: ITensor) -> ITensor:
    """Whether the sign is negative, including -0.0, whose reciprocal is -inf."""
    return ctx.elementwise(
        "OR", less(ctx, x, 0.0), less(ctx, ctx.unary("RECIP", x), 0.0)
    )


@converter("aten::lerp.Tensor", "aten::lerp.Scalar")
def lerp(
    ctx: ConversionContext, x: Tensor, end: Tensor, weight: Tensor | Number
) -> ITensor:
    """start + weight (end - start), computed from the nearer end, so that weight 1 returns `end`
    exactly; half precision is computed in float32
    """
    x, end = ctx.operands(x, end)
    return _lerp(
        ctx, x, end, weight if isinstance(weight, int | float) else ctx.tensor(weight)
    )


@half_as_float32
def _lerp(
    ctx: ConversionContext, x: ITensor, end: ITensor, weight: float | ITensor
) -> ITensor:
    difference = combine(ctx, "SUB", end, x)
    if isinstance(weight, int | float):
        if abs(weight) < 0.5:
            return combine(ctx, "SUM", x, combine(ctx, "PROD", difference, weight))
        return combine(ctx, "SUB", end, combine(ctx, "PROD", difference, 1 - weight))
    complement = combine(ctx, "SUB", ctx.like_scalar(weight, 1.0), weight)
    from_start = combine(ctx, "SUM", x, combine(ctx, "PROD", difference, weight))
    from_end = combine(ctx, "SUB", end, combine(ctx, "PROD", difference, complement))
    return choose(ctx, less(ctx, ctx.unary("ABS", weight), 0.5), from_start, from_end)


@for_each(
    ("addcmul", "PROD", "self + value tensor1 tensor2"),
    ("addcdiv", "DIV", "self + value tensor1 / tensor2"),
)
def _register_combination(name: str, operation: str, formula: str) -> None:
    @converter(f"aten::{name}")
    def combined(
        ctx: ConversionContext, x: Tensor, a: Tensor, b: Tensor, /, value: float
    ) -> ITensor:
        dtype = ctx.promoted(x, a, b)
        computed = torch.float32 if dtype in HALVES else dtype
        x, a, b = ctx.operands(*ctx.operands(x, a, b, dtype=dtype), dtype=computed)
        if value != 1:
            a = ctx.elementwise("PROD", *ctx.operands(a, value, dtype=computed))
        result = ctx.elementwise("SUM", x, ctx.elementwise(operation, a, b))
        return to_result_dtype(ctx, result, computed, dtype)

    combined.__doc__ = f"{formula}; half precision is computed in float32"


@converter("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def masked_fill(
    ctx: ConversionContext, x: Tensor, mask: Tensor, value: Operand
) -> ITensor:
    """value where the mask is true, else x; in x's dtype"""
    dtype = ctx.dtype(x)
    if isinstance(value, float) and not dtype.is_floating_point:
        value = bool(value) if dtype == torch.bool else int(value)
    return choose(ctx, mask, value, x, dtype)


@converter(
    "aten::where.self",
    "aten::where.ScalarOther",
    "aten::where.ScalarSelf",
    "aten::where.Scalar",
)
def where(
    ctx: ConversionContext, condition: Tensor, self: Operand, other: Operand
) -> ITensor:
    """self where the condition is true, else other"""
    return choose(ctx, condition, self, other)
