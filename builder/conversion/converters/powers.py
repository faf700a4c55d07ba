"""Powers: of floats by IElementWiseLayer, of integers by the exponent's bits.

The POW layer returns NaN for a negative base on TensorRT for RTX (pytorch/TensorRT, pull request
4181), as exp2(y log2 x) does. So it gets the absolute value, and the sign is chosen.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.elementwise import negative
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.facts import is_tensor
from builder.conversion.layers import choose, combine, equal, less
from builder.conversion.registry import converter
from builder.conversion.values import Operand
from builder.engine import ITensor


@converter("aten::square")
def square(ctx: ConversionContext, x: ITensor) -> ITensor:
    """x x; of bools as int64"""
    if ctx.dtype(x) == torch.bool:
        return combine(ctx, "PROD", ctx.cast(x, torch.int64), x)
    return combine(ctx, "PROD", x, x)


@converter("aten::pow.Tensor_Tensor", "aten::pow.Tensor_Scalar", "aten::pow.Scalar")
def power(ctx: ConversionContext, x: Operand, exponent: Operand) -> Any:
    """self^exponent: products and roots for the exponents for which PyTorch uses them, POW of the
    absolute value for others
    """
    dtype = ctx.promoted(x, exponent)
    if isinstance(exponent, int | float) and not isinstance(
        x, int | float | DynamicScalar
    ):
        x = ctx.cast(ctx.tensor(x), dtype)
        result = known_power(ctx, x, exponent)
        if result is not None:
            return result
        if dtype.is_floating_point:
            return static_power(ctx, x, exponent)
    if not dtype.is_floating_point:
        return integer_power(ctx, x, exponent, dtype)
    number = _finite_number(exponent)
    if number is not None and is_tensor(x) and ctx.rank(exponent) <= ctx.rank(x):
        return static_power(ctx, ctx.cast(x, dtype), number)
    has_positive_base = _is_positive(x)
    x, exponent = ctx.operands(x, exponent, dtype=dtype)
    if has_positive_base:
        return ctx.elementwise("POW", x, exponent)
    return real_power(ctx, x, exponent)


def _finite_number(exponent: Operand) -> float | None:
    """The finite number in a static tensor of one element; None for all others."""
    if not isinstance(exponent, torch.Tensor) or exponent.numel() != 1:
        return None
    number = float(exponent)
    return number if math.isfinite(number) else None


def _is_positive(x: Operand) -> bool:
    """Whether x is static, and all its values are positive and finite."""
    if isinstance(x, int | float):
        return 0 < x < torch.inf
    return isinstance(x, torch.Tensor) and bool(((x > 0) & (x < torch.inf)).all())


def static_power(ctx: ConversionContext, x: ITensor, exponent: float) -> ITensor:
    """A float to the power of a number that `known_power` does not know."""
    if exponent == 0:  # also of 0, infinities and NaN
        return choose(ctx, equal(ctx, x, x), 1.0, 1.0, ctx.dtype(x))
    absolute = ctx.unary("ABS", x)
    if math.isinf(exponent):
        return infinite_power(ctx, x, absolute, exponent > 0)
    if not float(exponent).is_integer():
        power = combine(ctx, "POW", absolute, float(exponent))
        return choose(ctx, _is_finite_negative(ctx, x), torch.nan, power, ctx.dtype(x))
    if exponent % 2 == 0:
        return combine(ctx, "POW", absolute, float(exponent))
    even_power = combine(ctx, "POW", absolute, abs(exponent) - 1.0)
    odd_power = combine(ctx, "PROD", even_power, x)
    return odd_power if exponent > 0 else ctx.unary("RECIP", odd_power)


def infinite_power(
    ctx: ConversionContext, x: ITensor, absolute: ITensor, grows: bool
) -> ITensor:
    """x^inf, or x^-inf unless it `grows`: 0, 1 or infinite, as |x| (`absolute`) is below, equal to
    or above 1.
    """
    dtype = ctx.dtype(x)
    above, below = (torch.inf, 0.0) if grows else (0.0, torch.inf)
    power = choose(ctx, less(ctx, 1.0, absolute), above, below, dtype)
    power = choose(ctx, equal(ctx, absolute, 1.0), 1.0, power, dtype)
    return choose(ctx, equal(ctx, x, x), power, torch.nan, dtype)


def _is_finite_negative(ctx: ConversionContext, x: ITensor) -> ITensor:
    """Where a fractional power of x is undefined."""
    return ctx.elementwise("AND", less(ctx, x, 0.0), less(ctx, -torch.inf, x))


def real_power(ctx: ConversionContext, x: ITensor, exponent: ITensor) -> ITensor:
    """A float to the power of a float tensor: |x|^exponent, negative for an odd exponent of a
    negative base and NaN for a fractional one.
    """
    absolute = ctx.elementwise("POW", ctx.unary("ABS", x), exponent)
    is_whole = _is_whole(ctx, exponent)
    is_odd = ctx.elementwise(
        "AND",
        is_whole,
        ctx.unary("NOT", _is_whole(ctx, combine(ctx, "PROD", exponent, 0.5))),
    )
    signed = choose(
        ctx,
        ctx.elementwise("AND", negative(ctx, x), is_odd),
        ctx.unary("NEG", absolute),
        absolute,
    )
    is_undefined = ctx.elementwise(
        "AND", _is_finite_negative(ctx, x), ctx.unary("NOT", is_whole)
    )
    result = choose(ctx, is_undefined, torch.nan, signed, ctx.dtype(x))
    return choose(ctx, equal(ctx, exponent, 0.0), 1.0, result, ctx.dtype(x))


def _is_whole(ctx: ConversionContext, x: ITensor) -> ITensor:
    return equal(ctx, ctx.unary("FLOOR", x), x)


def known_power(ctx: ConversionContext, x: ITensor, exponent: float) -> Any:
    """x^exponent for 1, 2, 3, and on floats their inverses and the square root; None for others."""
    if exponent == 1:
        return x
    if exponent in (2, 3):
        squared = combine(ctx, "PROD", x, x)
        if exponent == 2:
            return squared
        return combine(ctx, "PROD", squared, x)
    if not ctx.dtype(x).is_floating_point:
        return None
    if exponent == 0.5:
        return ctx.unary("SQRT", x)
    if exponent in (-0.5, -1, -2):
        return ctx.unary("RECIP", known_power(ctx, x, -exponent))
    return None


def integer_power(
    ctx: ConversionContext, x: Operand, exponent: Operand, dtype: torch.dtype
) -> ITensor:
    """Integer powers.

    Static exponents use repeated squaring, exact with wrap-around. Others use POW, or the bits of
    the exponent if POW supports only floats. PyTorch raises for a negative static exponent, and
    returns 1, (-1)^n or 0 for negative elements of an exponent tensor.
    """
    if isinstance(exponent, int):
        if exponent < 0:
            raise Unconvertible(
                "integers to a negative power are not allowed by PyTorch either"
            )
        return ctx.wrapped(squarings(ctx, ctx.tensor(x), exponent), dtype)
    x, exponent = ctx.operands(x, exponent, dtype=dtype)
    zero = ctx.like_scalar(exponent, 0)
    odd = low_bit(ctx, exponent)
    natural = ctx.elementwise("MAX", exponent, zero)
    result = natural_power(ctx, x, natural, odd, dtype)
    inverse = negative_power(ctx, x, odd, dtype)
    return ctx.wrapped(
        choose(ctx, less(ctx, exponent, 0), inverse, result, dtype), dtype
    )


def natural_power(
    ctx: ConversionContext,
    x: ITensor,
    exponent: ITensor,
    odd: ITensor,
    dtype: torch.dtype,
) -> ITensor:
    """x^exponent of integers, for an exponent of at least 0. `odd` is its last bit."""
    if not ctx.capabilities.takes("ELEMENTWISE.POW", x.dtype.name):
        return power_by_bits(ctx, x, exponent, odd)
    absolute = ctx.elementwise("POW", ctx.unary("ABS", x), exponent)
    is_negative = ctx.elementwise("AND", less(ctx, x, 0), equal(ctx, odd, 1))
    return choose(ctx, is_negative, ctx.unary("NEG", absolute), absolute, dtype)


def negative_power(
    ctx: ConversionContext, x: ITensor, odd: ITensor, dtype: torch.dtype
) -> ITensor:
    """x^exponent of integers, for an exponent below 0: 1 for 1, 1 or -1 for -1, and else 0. `odd`
    is the exponent's last bit.
    """
    sign = choose(ctx, equal(ctx, odd, 1), -1, 1, dtype)
    is_minus_one = equal(ctx, x, -1)
    one_or_zero = choose(ctx, equal(ctx, x, 1), 1, 0, dtype)
    return choose(ctx, is_minus_one, sign, one_or_zero, dtype)


def low_bit(ctx: ConversionContext, x: ITensor) -> ITensor:
    """x - 2 floor(x / 2): 1 where an integer is odd."""
    two = ctx.like_scalar(x, 2)
    return ctx.elementwise(
        "SUB", x, ctx.elementwise("PROD", ctx.elementwise("FLOOR_DIV", x, two), two)
    )


def power_by_bits(
    ctx: ConversionContext, x: ITensor, exponent: ITensor, odd: ITensor
) -> ITensor:
    """x^exponent of int32, as the product of x^(2^b) for each bit b of the exponent: five of them.
    For an exponent of 32 or more, only -1, 0 and 1 have powers in int32, and only its last bit
    (`odd`) matters.
    """
    over = ctx.elementwise("SUM", odd, ctx.like_scalar(odd, 30))
    exponent = ctx.net.add_select(less(ctx, exponent, 32), exponent, over).get_output(0)
    one = ctx.like_scalar(x, 1)
    result = one
    square = x
    for _ in range(5):
        factor = ctx.net.add_select(
            equal(ctx, low_bit(ctx, exponent), 1), square, one
        ).get_output(0)
        result = ctx.elementwise("PROD", result, factor)
        square = ctx.elementwise("PROD", square, square)
        exponent = ctx.elementwise("FLOOR_DIV", exponent, ctx.like_scalar(exponent, 2))
    return result


def squarings(ctx: ConversionContext, x: ITensor, exponent: int) -> Any:
    """x^exponent of integers in the carrier's arithmetic."""
    if exponent == 0:
        return ctx.elementwise(
            "SUM", ctx.elementwise("SUB", x, x), ctx.like_scalar(x, 1)
        )
    result = None
    square = x
    while exponent:
        if exponent & 1:
            result = (
                square if result is None else ctx.elementwise("PROD", result, square)
            )
        exponent >>= 1
        if exponent:
            square = ctx.elementwise("PROD", square, square)
    return result
