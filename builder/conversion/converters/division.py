"""Quotients, remainders and powers: where integers, floats and rounding modes part ways."""

from __future__ import annotations

import math
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.layers import choose, combine, computed_in, equal, less, settle, truncated
from builder.conversion.registry import converter
from builder.engine import dialect

NOTE_REMAINDER = "of floats exact for quotients below 2^24"


@converter(
    "aten::div.Tensor(Tensor self, Tensor other) -> Tensor",
    "aten::div.Scalar(Tensor self, Scalar other) -> Tensor",
    constants=("self", "other"),
    dynamic=("other",),
)
def divide(ctx: ConversionContext, node: Any, x: Any, other: Any) -> Any:
    """self / other; of integers in float32"""
    return true_quotient(ctx, x, other)


def true_quotient(ctx: ConversionContext, x: Any, other: Any) -> Any:
    """x / other in the dtype that they promote to, float32 for integers."""
    dtype = ctx.promoted(x, other)
    dtype = dtype if dtype.is_floating_point else torch.float32
    return ctx.elementwise("DIV", *ctx.operands(x, other, dtype=dtype))


@converter(
    "aten::div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor",
    "aten::div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor",
    constants=("self", "other"),
    dynamic=("other",),
)
def divide_rounded(ctx: ConversionContext, node: Any, x: Any, other: Any, rounding_mode: str | None) -> Any:
    """self / other without its fraction ("trunc"), or the next whole number below ("floor")"""
    if rounding_mode is None:
        return true_quotient(ctx, x, other)
    return {"trunc": truncated_quotient, "floor": floored_quotient}[rounding_mode](ctx, x, other)


def truncated_quotient(ctx: ConversionContext, x: Any, other: Any) -> Any:
    """The quotient towards zero; DIV of integers is that already, as in C."""
    dtype = ctx.promoted(x, other)
    quotient = ctx.elementwise("DIV", *ctx.operands(x, other, dtype=computed_in(dtype)))
    return truncated(ctx, quotient) if dtype.is_floating_point else settle(ctx, quotient, computed_in(dtype), dtype)


def floored_quotient(ctx: ConversionContext, x: Any, other: Any) -> Any:
    """The quotient towards minus infinity."""
    dtype = ctx.promoted(x, other)
    if dtype.is_floating_point and not power_of_two(other):
        return ctx.cast(floored(ctx, x, other)[0], dtype)
    quotient = ctx.elementwise("FLOOR_DIV", *ctx.operands(x, other, dtype=computed_in(dtype)))
    return settle(ctx, quotient, computed_in(dtype), dtype)


@converter(
    "aten::floor_divide(Tensor self, Tensor other) -> Tensor",
    "aten::floor_divide.Scalar(Tensor self, Scalar other) -> Tensor",
    constants=("self", "other"),
    dynamic=("other",),
)
def floor_divide(ctx: ConversionContext, node: Any, x: Any, other: Any) -> Any:
    """floor(self / other), of negative integers too"""
    return floored_quotient(ctx, x, other)


@converter(
    "aten::fmod.Tensor(Tensor self, Tensor other) -> Tensor",
    "aten::fmod.Scalar(Tensor self, Scalar other) -> Tensor",
    constants=("self", "other"),
    dynamic=("other",),
    note=NOTE_REMAINDER,
)
def fmod(ctx: ConversionContext, node: Any, x: Any, other: Any) -> Any:
    """self - trunc(self / other) other: the sign of self"""
    dtype = ctx.promoted(x, other)
    if not dtype.is_floating_point:
        return rest(ctx, x, other, truncated_quotient(ctx, x, other))
    a, b = ctx.operands(x, other, dtype=torch.float32)
    sizes = [ctx.unary("ABS", t) for t in (a, b)]  # the rest of the sizes, with the sign of self
    return ctx.cast(ctx.elementwise("PROD", floored(ctx, *sizes)[1], ctx.unary("SIGN", a)), dtype)


@converter(
    "aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor",
    "aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor",
    "aten::remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor",
    constants=("self", "other"),
    dynamic=("self", "other"),
    note=NOTE_REMAINDER,
)
def remainder(ctx: ConversionContext, node: Any, x: Any, other: Any) -> Any:
    """self - floor(self / other) other: the sign of other"""
    dtype = ctx.promoted(x, other)
    if dtype.is_floating_point and not power_of_two(other):
        return ctx.cast(floored(ctx, x, other)[1], dtype)
    return rest(ctx, x, other, floored_quotient(ctx, x, other))


def rest(ctx: ConversionContext, x: Any, other: Any, quotient: Any) -> Any:
    """x - quotient other, in the dtype that x and other promote to"""
    dtype = ctx.promoted(x, other)
    x, other, quotient = ctx.operands(x, other, quotient, dtype=computed_in(dtype))
    result = ctx.elementwise("SUB", x, ctx.elementwise("PROD", quotient, other))
    return settle(ctx, result, computed_in(dtype), dtype)


def power_of_two(divisor: Any) -> bool:
    """Whether a static divisor is a power of two: quotients and products by it are exact."""
    return isinstance(divisor, int | float) and divisor != 0 and math.frexp(abs(divisor))[0] == 0.5


def floored(ctx: ConversionContext, x: Any, other: Any) -> tuple[Any, Any]:
    """Quotient towards minus infinity and rest of floats, in float32.

    7 / -0.7 is -10 when rounded, but -0.7 is a little less in size, so the floor is -11: the rest x - q other, exact by
    `exact_rest`, has the wrong sign then, and tells.
    """
    a, b = ctx.operands(x, other, dtype=torch.float32)
    quotient = ctx.elementwise("FLOOR_DIV", a, b)
    found = exact_rest(ctx, a, quotient, b)
    over = less(ctx, ctx.elementwise("PROD", ctx.unary("SIGN", found), ctx.unary("SIGN", b)), 0.0)
    smaller = ctx.elementwise("SUB", quotient, ctx.like_scalar(quotient, 1.0))
    return choose(ctx, over, smaller, quotient), choose(ctx, over, ctx.elementwise("SUM", found, b), found)


def exact_rest(ctx: ConversionContext, a: Any, quotient: Any, b: Any) -> Any:
    """a - quotient b, each factor split into halves of 12 bits, whose products are exact (Veltkamp, Dekker)."""
    high = ctx.unary("ROUND", ctx.elementwise("PROD", quotient, ctx.like_scalar(quotient, 2.0**-12)))
    high = ctx.elementwise("PROD", high, ctx.like_scalar(high, 2.0**12))
    low = ctx.elementwise("SUB", quotient, high)
    swollen = ctx.elementwise("PROD", b, ctx.like_scalar(b, 2.0**12 + 1))
    b_high = ctx.elementwise("SUB", swollen, ctx.elementwise("SUB", swollen, b))
    b_low = ctx.elementwise("SUB", b, b_high)
    for part in (high, low):
        for b_part in (b_high, b_low):
            a = ctx.elementwise("SUB", a, ctx.elementwise("PROD", part, b_part))
    return a


@converter("aten::square(Tensor self) -> Tensor")
def square(ctx: ConversionContext, node: Any, x: Any) -> Any:
    """x x; of bools as int64"""
    return combine(ctx, "PROD", x if ctx.dtype(x) != torch.bool else ctx.cast(x, torch.int64), x)


@converter(
    "aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor",
    "aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor",
    "aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor",
    constants=("self", "exponent"),
    dynamic=("self", "exponent"),
)
def power(ctx: ConversionContext, node: Any, x: Any, exponent: Any) -> Any:
    """self^exponent: products and roots for the exponents that PyTorch treats so, POW for the others"""
    dtype = ctx.promoted(x, exponent)
    if isinstance(exponent, int | float) and not isinstance(x, int | float | DynamicScalar):
        x = ctx.cast(ctx.tensor(x), dtype)
        known = known_power(ctx, x, exponent)
        if known is not None:
            return known
    if dtype.is_floating_point:
        return ctx.elementwise("POW", *ctx.operands(x, exponent, dtype=dtype))
    return integer_power(ctx, x, exponent, dtype)


def known_power(ctx: ConversionContext, x: Any, exponent: float) -> Any:
    """x^exponent for 1, 2, 3, and on floats their inverses and the square root; None for others."""
    if exponent == 1:
        return x
    if exponent in (2, 3):
        squared = combine(ctx, "PROD", x, x)
        return squared if exponent == 2 else combine(ctx, "PROD", squared, x)
    if not ctx.dtype(x).is_floating_point:
        return None
    if exponent == 0.5:
        return ctx.unary("SQRT", x)
    if exponent in (-0.5, -1, -2):
        return ctx.unary("RECIP", known_power(ctx, x, -exponent))
    return None


def integer_power(ctx: ConversionContext, x: Any, exponent: Any, dtype: torch.dtype) -> Any:
    """Integers to static powers by repeated squaring, exact and wrapping around; others by POW, or where that takes
    floats only by the bits of the exponent.

    PyTorch raises for a negative static exponent, and gives 1, (-1)^n or 0 for negative elements of a tensor.
    """
    if isinstance(exponent, int):
        if exponent < 0:
            raise Unconvertible("integers to a negative power are not allowed by PyTorch either")
        return ctx.wrapped(squarings(ctx, ctx.tensor(x), exponent), dtype)
    x, exponent = ctx.operands(x, exponent, dtype=dtype)
    zero = ctx.like_scalar(exponent, 0)
    odd, natural = low_bit(ctx, exponent), ctx.elementwise("MAX", exponent, zero)
    has_layer = dialect.takes("ELEMENTWISE.POW", x.dtype.name)
    result = ctx.elementwise("POW", x, natural) if has_layer else power_by_bits(ctx, x, natural, odd)
    minus_one = choose(ctx, equal(ctx, odd, 1), -1, 1, dtype)
    inverse = choose(ctx, equal(ctx, x, -1), minus_one, choose(ctx, equal(ctx, x, 1), 1, 0, dtype), dtype)
    return ctx.wrapped(choose(ctx, less(ctx, exponent, 0), inverse, result, dtype), dtype)


def low_bit(ctx: ConversionContext, x: Any) -> Any:
    """x - 2 floor(x / 2): 1 where an integer is odd."""
    two = ctx.like_scalar(x, 2)
    return ctx.elementwise("SUB", x, ctx.elementwise("PROD", ctx.elementwise("FLOOR_DIV", x, two), two))


def power_by_bits(ctx: ConversionContext, x: Any, exponent: Any, odd: Any) -> Any:
    """x^exponent of int32, as the product of x^(2^b) for each bit b of the exponent: five of them. An exponent of 32 or
    more stays within int32 for -1, 0 and 1 only, to whom just its last bit (`odd`) matters."""
    over = ctx.elementwise("SUM", odd, ctx.like_scalar(odd, 30))
    exponent = ctx.net.add_select(less(ctx, exponent, 32), exponent, over).get_output(0)
    one = ctx.like_scalar(x, 1)
    result, square = one, x
    for _ in range(5):
        factor = ctx.net.add_select(equal(ctx, low_bit(ctx, exponent), 1), square, one).get_output(0)
        result, square = ctx.elementwise("PROD", result, factor), ctx.elementwise("PROD", square, square)
        exponent = ctx.elementwise("FLOOR_DIV", exponent, ctx.like_scalar(exponent, 2))
    return result


def squarings(ctx: ConversionContext, x: Any, exponent: int) -> Any:
    """x^exponent of integers in the carrier's arithmetic."""
    if exponent == 0:
        return ctx.elementwise("SUM", ctx.elementwise("SUB", x, x), ctx.like_scalar(x, 1))
    result, square = None, x
    while exponent:
        if exponent & 1:
            result = square if result is None else ctx.elementwise("PROD", result, square)
        exponent >>= 1
        square = ctx.elementwise("PROD", square, square) if exponent else square
    return result


@converter("aten::atan2(Tensor self, Tensor other) -> Tensor", constants=("self", "other"))
def atan2(ctx: ConversionContext, node: Any, y: Any, x: Any) -> Any:
    """The angle of the point (x, y): atan(|y| / |x|), turned into its quadrant; the sign of a zero counts"""
    dtype = ctx.promoted(y, x)
    y, x = ctx.operands(y, x, dtype=dtype if dtype.is_floating_point else torch.float32)
    height, width = ctx.unary("ABS", y), ctx.unary("ABS", x)
    # |y| = |x| is 45 degrees, also where the quotient would be inf/inf; both 0 is the sign of 0, which is 0.
    ratio = choose(ctx, equal(ctx, height, width), ctx.unary("SIGN", width), combine(ctx, "DIV", height, width))
    angle = ctx.unary("ABS", ctx.unary("ATAN", ratio))  # 8.6's |0| may be -0, whose quotient is -inf
    turned = combine(ctx, "SUB", ctx.like_scalar(angle, torch.pi), angle)
    angle = choose(ctx, negative(ctx, x), turned, angle)
    return choose(ctx, negative(ctx, y), ctx.unary("NEG", angle), angle)


def negative(ctx: ConversionContext, x: Any) -> Any:
    """Whether the sign is minus, that of -0.0 too: its reciprocal is -inf."""
    return ctx.elementwise("OR", less(ctx, x, 0.0), less(ctx, ctx.unary("RECIP", x), 0.0))
