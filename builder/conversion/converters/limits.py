"""Clamps, and tests for finite numbers."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.layers import (
    choose,
    combine,
    equal,
    extremum,
    is_nan,
    less,
    with_nan_of,
)
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Operand, Tensor
from builder.engine import ITensor


@converter("aten::clamp", "aten::clamp.Tensor", "aten::clip", "aten::clip.Tensor")
def clamp(
    ctx: ConversionContext, x: Tensor, min: Operand | None, max: Operand | None
) -> Any:
    """min(max(x, low), high), in the dtype that all promote to: integers with fractional limits
    become floats; NaN stays
    """
    limits = [value for value in (min, max) if value is not None]
    dtype = ctx.promoted(x, *limits)
    x = ctx.cast(ctx.tensor(x), dtype)
    # Not the CLIP activation: 8.6 computes it in a kernel of its own before that of the NaN test
    # (20 us instead of 9 for 32x64x56x56 in fp16 on an H100).
    result = _limited(ctx, x, min, max, dtype)
    for value in (x, *limits):
        result = with_nan_of(ctx, value, result)
    return result


def _limited(
    ctx: ConversionContext,
    x: ITensor,
    low: Operand | None,
    high: Operand | None,
    dtype: torch.dtype,
) -> ITensor:
    for operation, limit in (("MAX", low), ("MIN", high)):
        if limit is not None:
            x = ctx.elementwise(operation, *ctx.operands(x, limit, dtype=dtype))
            ctx.remember_dtype(x, dtype)
    return x


@for_each(("min", "MAX", "max(x, low)"), ("max", "MIN", "min(x, high)"))
def _register_limit(name: str, operation: str, formula: str) -> None:
    @converter(f"aten::clamp_{name}", f"aten::clamp_{name}.Tensor")
    def clamped(ctx: ConversionContext, x: Tensor, limit: Operand, /) -> ITensor:
        return extremum(ctx, operation, x, limit)

    clamped.__doc__ = formula


@converter("aten::isfinite")
def isfinite(ctx: ConversionContext, x: ITensor) -> ITensor:
    """|x| < inf, which is false for NaN; true for integers"""
    if not ctx.dtype(x).is_floating_point:
        return _filled_like(ctx, x, value=True)
    return less(ctx, ctx.unary("ABS", x), torch.inf)


@converter("aten::isnan")
def isnan(ctx: ConversionContext, x: ITensor) -> ITensor:
    """Whether x is NaN"""
    if ctx.dtype(x).is_floating_point:
        return is_nan(ctx, x)
    return _filled_like(ctx, x, value=False)


@converter("aten::isinf")
def isinf(ctx: ConversionContext, x: ITensor) -> ITensor:
    """Whether x is inf or -inf"""
    if not ctx.dtype(x).is_floating_point:
        return _filled_like(ctx, x, value=False)
    if ctx.capabilities.has_operation("UNARY", "ISINF"):
        return ctx.unary("ISINF", x)
    return equal(ctx, ctx.unary("ABS", x), torch.inf)


@for_each(("isposinf", torch.inf), ("isneginf", -torch.inf))
def _register_signed_infinity(name: str, infinity: float) -> None:
    @converter(f"aten::{name}")
    def is_infinity(ctx: ConversionContext, x: ITensor) -> ITensor:
        if ctx.dtype(x).is_floating_point:
            return equal(ctx, x, infinity)
        return _filled_like(ctx, x, value=False)


def _filled_like(ctx: ConversionContext, x: ITensor, *, value: bool) -> ITensor:
    """A bool tensor with the shape of an integer or bool tensor, filled with `value`: x == x, or
    its negation.
    """
    is_itself = ctx.elementwise("EQUAL", x, x)
    return is_itself if value else ctx.unary("NOT", is_itself)


@converter("aten::nan_to_num")
def nan_to_num(
    ctx: ConversionContext,
    x: ITensor,
    nan: float | None,
    posinf: float | None,
    neginf: float | None,
) -> ITensor:
    """x with other numbers for NaN (0), inf and -inf (the dtype's largest and smallest)"""
    dtype = ctx.dtype(x)
    if not dtype.is_floating_point:
        return x
    limits = torch.finfo(dtype)
    result = choose(ctx, is_nan(ctx, x), nan or 0.0, x)
    for infinity, replacement, default in (
        (torch.inf, posinf, limits.max),
        (-torch.inf, neginf, limits.min),
    ):
        if replacement is None:
            replacement = default
        result = choose(ctx, equal(ctx, x, infinity), replacement, result)
    return result


@for_each(("fmax", "MAX"), ("fmin", "MIN"))
def _register_nan_aware(name: str, operation: str) -> None:
    @converter(f"aten::{name}")
    def extreme(ctx: ConversionContext, x: Tensor, other: Tensor) -> ITensor:
        if not ctx.promoted(x, other).is_floating_point:
            return combine(ctx, operation, x, other)
        x, other = ctx.operands(x, other)
        result = choose(ctx, is_nan(ctx, other), x, combine(ctx, operation, x, other))
        return choose(ctx, is_nan(ctx, x), other, result)
