"""Quotients and remainders of integers and floats, with rounding modes."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, bounds
from builder.conversion.facts import is_tensor
from builder.conversion.layers import (
    HALVES,
    arithmetic_dtype,
    choose,
    comparison,
    computed_in,
    equal,
    less,
    to_result_dtype,
    truncated,
)
from builder.conversion.registry import converter
from builder.conversion.values import Operand, Tensor
from builder.engine import ITensor, trt

NOTE_REMAINDER = (
    "of floats exact for quotients below 2^48 and finite divisors below 2^114, else NaN"
)


@converter("aten::div.Tensor", "aten::div.Scalar")
def true_quotient(ctx: ConversionContext, x: Tensor, other: Operand) -> ITensor:
    """self / other in the dtype that they promote to, float32 for integers"""
    dtype = ctx.promoted(x, other)
    if not dtype.is_floating_point:
        dtype = torch.float32
    computed = arithmetic_dtype("DIV", dtype, (x, other))
    return ctx.cast(
        ctx.elementwise("DIV", *ctx.operands(x, other, dtype=computed)), dtype
    )


@converter("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def divide_rounded(
    ctx: ConversionContext, x: Tensor, other: Operand, rounding_mode: str | None
) -> ITensor:
    """self / other, rounded toward zero ("trunc") or down ("floor")"""
    if rounding_mode is None:
        return true_quotient(ctx, x, other)
    return {"trunc": truncated_quotient, "floor": floored_quotient}[rounding_mode](
        ctx, x, other
    )


def truncated_quotient(ctx: ConversionContext, x: Tensor, other: Operand) -> ITensor:
    """The quotient rounded toward zero. DIV of integers already rounds so, as in C."""
    dtype = ctx.promoted(x, other)
    if dtype in HALVES:
        return _truncated_half(ctx, x, other, dtype)
    computed = computed_in(dtype)
    quotient = ctx.elementwise("DIV", *ctx.operands(x, other, dtype=computed))
    if dtype.is_floating_point:
        return truncated(ctx, quotient)
    return to_result_dtype(ctx, quotient, computed, dtype)


def _truncated_half(
    ctx: ConversionContext, x: Tensor, other: Operand, dtype: torch.dtype
) -> ITensor:
    """The quotient in half precision, truncated. By a number, PyTorch truncates the quotient in
    float32. By a tensor, it rounds the quotient to half before.
    """
    rounds = _rounds_quotients(ctx, other, dtype)
    (x,) = ctx.operands(x, dtype=dtype)
    if rounds:
        (other,) = ctx.operands(other, dtype=dtype)
    quotient = ctx.elementwise("DIV", *ctx.operands(x, other, dtype=torch.float32))
    if rounds:
        quotient = _round(ctx, quotient, dtype)
    return ctx.cast(truncated(ctx, quotient), dtype)


def _round(ctx: ConversionContext, x: ITensor, dtype: torch.dtype) -> ITensor:
    """x, which is float32, rounded to another dtype."""
    return ctx.cast(ctx.cast(x, dtype), torch.float32)


def _rounds_quotients(
    ctx: ConversionContext, divisor: Operand, dtype: torch.dtype
) -> bool:
    """Whether PyTorch rounds each step of a division to `dtype`: for half precision, unless the
    divisor is a number.
    """
    if dtype not in HALVES or ctx.policy_half == dtype:
        return False
    return not _has_one_element(ctx, divisor)


def _floored_half(
    ctx: ConversionContext, x: Operand, other: Operand, dtype: torch.dtype
) -> ITensor:
    """The floored quotient of half tensors: (x - x fmod other) / other, with the steps and the
    roundings of PyTorch.
    """
    x, other = ctx.operands(x, other, dtype=dtype)
    rest = fmod(ctx, x, other)
    a, b, rest = ctx.operands(x, other, rest, dtype=torch.float32)
    multiple = _round(ctx, ctx.elementwise("SUB", a, rest), dtype)
    quotient = _round(ctx, ctx.elementwise("DIV", multiple, b), dtype)
    one = ctx.like_scalar(quotient, 1.0)
    signs = [ctx.unary("SIGN", tensor) for tensor in (rest, b)]
    below = less(ctx, ctx.elementwise("PROD", *signs), 0.0)
    smaller = _round(ctx, ctx.elementwise("SUB", quotient, one), dtype)
    quotient = choose(ctx, below, smaller, quotient)
    floor = ctx.unary("FLOOR", quotient)
    above = ctx.elementwise("SUB", quotient, floor)
    floor = choose(
        ctx, less(ctx, 0.5, above), ctx.elementwise("SUM", floor, one), floor
    )
    by_zero = equal(ctx, b, 0.0)
    return ctx.cast(choose(ctx, by_zero, ctx.elementwise("DIV", a, b), floor), dtype)


def _has_one_element(ctx: ConversionContext, divisor: Operand) -> bool:
    """Whether PyTorch reads the divisor as one number, also if it is a tensor. Raises Unconvertible
    where that depends on the shapes.
    """
    if isinstance(divisor, int | float | DynamicScalar):
        return True
    lengths = ctx.exprs(divisor)
    if all(length == 1 for length in lengths):
        return True
    spans = [bounds(length, ctx.ranges()) for length in lengths]
    several = any(span is not None and span[0] > 1 for span in spans)
    if not several or _is_repeated(ctx, divisor):
        raise Unconvertible(
            "PyTorch rounds a quotient of half precision differently if the"
            " divisor has one element, and the divisor may have one or several",
            "divide in float32",
        )
    return False


def _is_repeated(ctx: ConversionContext, divisor: Tensor) -> bool:
    """Whether one element may be expanded to the divisor, which PyTorch reads as one number until
    it is copied.
    """
    if isinstance(divisor, torch.Tensor):
        return not any(divisor.stride())
    layer = ctx.producer(divisor)
    return (
        layer is not None
        and layer.type == trt.LayerType.SLICE
        and all(length == 1 for length in ctx.exprs(layer.get_input(0)))
    )


def floored_quotient(ctx: ConversionContext, x: Operand, other: Operand) -> ITensor:
    """The quotient rounded down. That of an infinity is NaN, unless the divisor is 0."""
    dtype = ctx.promoted(x, other)
    if not dtype.is_floating_point:
        return floor_layer(ctx, x, other)
    other = as_number(ctx, x, other)
    if power_of_two(other):
        quotient = floor_layer(ctx, x, other)
    elif _rounds_quotients(ctx, other, dtype):
        x = rounded(x, dtype)
        quotient = _floored_half(ctx, x, other, dtype)
    else:
        quotient = ctx.cast(floored(ctx, x, other)[0], dtype)
    if isinstance(x, int | float) and math.isfinite(x):
        return quotient
    by_number = isinstance(other, int | float)
    if by_number and other == 0:
        return quotient
    x, other = ctx.operands(x, other, dtype=dtype)
    undefined = equal(ctx, ctx.unary("ABS", x), torch.inf)
    if not by_number:
        by_nonzero = comparison(ctx, "ne", other, 0.0)
        undefined = ctx.elementwise("AND", undefined, by_nonzero)
    return choose(ctx, undefined, torch.nan, quotient, dtype)


def floor_layer(ctx: ConversionContext, x: Operand, other: Operand) -> ITensor:
    """The floor of the rounded quotient: one IElementWiseLayer."""
    dtype = ctx.promoted(x, other)
    computed = computed_in(dtype)
    quotient = ctx.elementwise("FLOOR_DIV", *ctx.operands(x, other, dtype=computed))
    return to_result_dtype(ctx, quotient, computed, dtype)


@converter("aten::fmod.Tensor", "aten::fmod.Scalar", note=NOTE_REMAINDER)
def fmod(ctx: ConversionContext, x: Tensor, other: Operand) -> ITensor:
    """self - trunc(self / other) other: the sign of self"""
    dtype = ctx.promoted(x, other)
    if not dtype.is_floating_point:
        return remainder_of(ctx, x, other, truncated_quotient(ctx, x, other))
    other = rounded(as_number(ctx, x, other), dtype)
    if power_of_two(other):
        x = ctx.cast(ctx.tensor(x), torch.float32)
        rest = remainder_of(ctx, x, other, truncated_quotient(ctx, x, other))
        return ctx.cast(_or_zero_of_multiple(ctx, x, other, rest), dtype)
    _check_exact_remainder(ctx, x, other)
    a, b = ctx.operands(x, other, dtype=torch.float32)
    # the remainder of the absolute values, with the sign of self
    sizes = [ctx.unary("ABS", operand) for operand in (a, b)]
    return ctx.cast(
        ctx.elementwise("PROD", floored(ctx, *sizes)[1], ctx.unary("SIGN", a)), dtype
    )


@converter(
    "aten::remainder.Tensor",
    "aten::remainder.Scalar",
    "aten::remainder.Scalar_Tensor",
    note=NOTE_REMAINDER,
)
def remainder(ctx: ConversionContext, x: Operand, other: Operand) -> ITensor:
    """self - floor(self / other) other: the sign of other"""
    dtype = ctx.promoted(x, other)
    if not dtype.is_floating_point:
        return remainder_of(ctx, x, other, floor_layer(ctx, x, other))
    other = rounded(as_number(ctx, x, other), dtype)
    x = rounded(x, dtype)
    if not power_of_two(other):
        return ctx.cast(floored(ctx, x, other)[1], dtype)
    if dtype == torch.float16:  # the quotient by a fraction may exceed its range
        x = ctx.cast(ctx.tensor(x), torch.float32)
    rest = remainder_of(ctx, x, other, floor_layer(ctx, x, other))
    return ctx.cast(_or_zero_of_multiple(ctx, x, other, rest), dtype)


def _or_zero_of_multiple(
    ctx: ConversionContext, x: Operand, divisor: float, rest: ITensor
) -> ITensor:
    """The remainder `rest` of x by a power of two, or 0 where x is certainly a multiple: its
    quotient by a fraction may be infinite. The 0 has the sign of x, and is NaN for an infinity.
    """
    if abs(divisor) >= 1:
        return rest
    x = ctx.tensor(x)
    is_small = less(ctx, ctx.unary("ABS", x), abs(divisor) * 2.0**24)
    zero = ctx.elementwise("PROD", x, ctx.like_scalar(x, 0.0))
    return choose(ctx, is_small, rest, zero, ctx.dtype(rest))


def as_number(ctx: ConversionContext, x: Operand, divisor: Operand) -> Operand:
    """The number in a static 0-d tensor, if x is promoted to the same dtype by both. A saved trace
    has such a tensor for the 2 of `x // 2`.
    """
    if isinstance(divisor, torch.Tensor) and not divisor.dim():
        number = divisor.item()
        if ctx.promoted(x, number) == ctx.promoted(x, divisor):
            return number
    return divisor


def rounded(operand: Operand, dtype: torch.dtype) -> Operand:
    """The operand; a number is rounded to half precision, as PyTorch's remainders do. Quotients
    by a number use it as it is.
    """
    if dtype in HALVES and isinstance(operand, int | float):
        return torch.tensor(operand, dtype=dtype).item()
    return operand


def remainder_of(
    ctx: ConversionContext, x: Operand, other: Operand, quotient: ITensor
) -> ITensor:
    """x - quotient other, in the dtype that x and other promote to"""
    dtype = ctx.promoted(x, other)
    x, other, quotient = ctx.operands(x, other, quotient, dtype=computed_in(dtype))
    result = ctx.elementwise("SUB", x, ctx.elementwise("PROD", quotient, other))
    return to_result_dtype(ctx, result, computed_in(dtype), dtype)


def power_of_two(divisor: Operand) -> TypeGuard[int | float]:
    """Whether a static divisor is a power of two, so that quotients and products with it are
    exact.
    """
    return (
        isinstance(divisor, int | float)
        and divisor != 0
        and math.frexp(abs(divisor))[0] == 0.5
    )


def floored(ctx: ConversionContext, x: Operand, other: Operand) -> tuple[Any, Any]:
    """The floored quotient and the remainder of floats, in float32.

    The rounded 7 / -0.7 is -10, but the float -0.7 is slightly smaller in magnitude, so the floor
    is -11. The remainder x - q other, exact by `exact_rest`, then has the incorrect sign, and q is
    corrected. A quotient of 2^24 or more is rounded, and its remainder is divided once more.

    Raises Unconvertible for half tensors where TensorRT computes the remainder incorrectly.
    """
    _check_exact_remainder(ctx, x, other)
    a, b = ctx.operands(x, other, dtype=torch.float32)
    quotient = ctx.elementwise("FLOOR_DIV", a, b)
    exact_remainder = exact_rest(ctx, a, quotient, b)
    exact_remainder = choose(
        ctx,
        less(ctx, ctx.unary("ABS", quotient), 2.0**24),
        exact_remainder,
        _rest_of_large_quotient(ctx, exact_remainder, quotient, b),
    )
    if not isinstance(other, int | float) or math.isinf(other):
        exact_remainder = _past_infinity(ctx, a, b, exact_remainder)
    over = less(
        ctx,
        ctx.elementwise(
            "PROD", ctx.unary("SIGN", exact_remainder), ctx.unary("SIGN", b)
        ),
        0.0,
    )
    smaller = ctx.elementwise("SUB", quotient, ctx.like_scalar(quotient, 1.0))
    return choose(ctx, over, smaller, quotient), choose(
        ctx, over, ctx.elementwise("SUM", exact_remainder, b), exact_remainder
    )


def _check_exact_remainder(ctx: ConversionContext, *operands: Operand) -> None:
    """Raise Unconvertible for tensors that are half, or were cast from half, in the module."""
    if ctx.policy_half or ctx.capabilities.takes("ELEMENTWISE.EXACT_REMAINDER", "HALF"):
        return
    for operand in filter(is_tensor, operands):
        if ctx.dtype(operand) in HALVES or ctx.facts(operand).wide_of is not None:
            raise Unconvertible(
                "this TensorRT computes floors and remainders of half tensors incorrectly where"
                " the quotient is close to an integer",
                "use TensorRT 10 or newer, or divide a float32 input",
            )


def _rest_of_large_quotient(
    ctx: ConversionContext, rest: ITensor, quotient: ITensor, b: ITensor
) -> ITensor:
    """The remainder of a quotient that was rounded to 24 bits: `rest` divided once more, which is
    exact for twice as many bits. NaN for larger quotients.
    """
    second_quotient = ctx.elementwise("FLOOR_DIV", rest, b)
    return choose(
        ctx,
        less(ctx, ctx.unary("ABS", quotient), 2.0**48),
        exact_rest(ctx, rest, second_quotient, b),
        torch.nan,
    )


def _past_infinity(
    ctx: ConversionContext, a: ITensor, b: ITensor, exact_remainder: ITensor
) -> ITensor:
    """The remainder, and that of infinite divisors: a, or NaN where a is infinite."""
    infinite = equal(ctx, ctx.unary("ABS", b), torch.inf)
    # NaN where a is infinite
    nothing = ctx.elementwise("PROD", a, ctx.like_scalar(a, 0.0))
    return choose(ctx, infinite, ctx.elementwise("SUM", a, nothing), exact_remainder)


def exact_rest(
    ctx: ConversionContext, a: ITensor, quotient: ITensor, b: ITensor
) -> ITensor:
    """a - quotient b, each factor split into halves of 12 bits, whose products are exact (Veltkamp,
    Dekker).
    """
    b_parts = split_bits(ctx, b)
    for part in split_bits(ctx, quotient):
        for b_part in b_parts:
            a = ctx.elementwise("SUB", a, ctx.elementwise("PROD", part, b_part))
    return a


def split_bits(ctx: ConversionContext, x: ITensor) -> tuple[ITensor, ITensor]:
    """The upper and the lower 12 bits of float32, which add up to x."""
    scaled = ctx.elementwise("PROD", x, ctx.like_scalar(x, 2.0**12 + 1))
    high = ctx.elementwise("SUB", scaled, ctx.elementwise("SUB", scaled, x))
    return high, ctx.elementwise("SUB", x, high)
