"""Logical operators, and bitwise operators on integers by arithmetic, because TensorRT has no layer
for them.
"""

from __future__ import annotations

from typing import TypeGuard

import torch

from builder.conversion import dtypes
from builder.conversion.context import ConversionContext
from builder.conversion.layers import choose, gathered, less, reduce
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Number, Operand, Tensor
from builder.engine import ITensor

OPERATIONS = {"and": "AND", "or": "OR", "xor": "XOR"}


@for_each(*OPERATIONS.items())
def _register_logical(name: str, operation: str) -> None:
    @converter(f"aten::logical_{name}")
    def logical(ctx: ConversionContext, x: Tensor, other: Tensor) -> ITensor:
        truths = (ctx.cast(ctx.tensor(value), torch.bool) for value in (x, other))
        return ctx.elementwise(operation, *ctx.broadcast(*truths))


def _is_low_mask(value: Operand) -> TypeGuard[int]:
    """Whether the value is a static number whose set bits are the lowest ones."""
    return isinstance(value, int) and value >= 0 and value & (value + 1) == 0


@for_each(*OPERATIONS.items())
def _register_bitwise(name: str, operation: str) -> None:
    @converter(
        f"aten::bitwise_{name}.Tensor",
        f"aten::bitwise_{name}.Scalar",
        f"aten::bitwise_{name}.Scalar_Tensor",
        f"aten::__{name}__.Tensor",
        f"aten::__{name}__.Scalar",
    )
    def bitwise(
        ctx: ConversionContext, x: Tensor | Number, other: Tensor | Number
    ) -> ITensor:
        dtype = ctx.promoted(x, other)
        a, b = ctx.operands(x, other, dtype=dtype)
        if dtype == torch.bool:
            return ctx.elementwise(operation, a, b)
        if operation == "AND" and _is_low_mask(x):
            return low_bits(ctx, b, x, dtype)
        if operation == "AND" and _is_low_mask(other):
            return low_bits(ctx, a, other, dtype)
        return by_bits(ctx, operation, a, b, dtype)


@converter("aten::logical_not")
def logical_not(ctx: ConversionContext, x: ITensor) -> ITensor:
    """x is 0"""
    if ctx.dtype(x) == torch.bool:
        return ctx.unary("NOT", x)
    return ctx.elementwise("EQUAL", x, ctx.like_scalar(x, 0))


@converter("aten::bitwise_not")
def bitwise_not(ctx: ConversionContext, x: ITensor) -> ITensor:
    """Every bit inverted: -1 - x in two's complement"""
    dtype = ctx.dtype(x)
    if dtype == torch.bool:
        return ctx.unary("NOT", x)
    return ctx.wrapped(ctx.elementwise("SUB", ctx.like_scalar(x, -1), x), dtype)


def low_bits(
    ctx: ConversionContext, x: ITensor, mask: int, dtype: torch.dtype
) -> ITensor:
    """x & (2^n - 1): the remainder of floor division by 2^n."""
    if mask == torch.iinfo(dtypes.carrier(dtype)).max:
        mask >>= 1  # 2^n would not fit; bit n - 1 is handled by two steps
        high = by_bits(ctx, "AND", x, ctx.like_scalar(x, mask + 1), dtype)
        return ctx.elementwise("SUM", high, low_bits(ctx, x, mask, dtype))
    size = ctx.like_scalar(x, mask + 1)
    base = ctx.elementwise("PROD", ctx.elementwise("FLOOR_DIV", x, size), size)
    return ctx.wrapped(ctx.elementwise("SUB", x, base), dtype)


def by_bits(
    ctx: ConversionContext, operation: str, a: ITensor, b: ITensor, dtype: torch.dtype
) -> ITensor:
    """Split integers into an axis of bits, combine these, and sum them with their weights."""
    rank = ctx.rank(a)
    carrier = dtypes.carrier(dtype)
    bits_of_a = bits(ctx, ctx.unsqueeze(a, [rank]), carrier)
    bits_of_b = bits(ctx, ctx.unsqueeze(b, [rank]), carrier)
    combined = ctx.elementwise(operation, bits_of_a, bits_of_b)
    weights = ctx.constant(bit_weights(carrier).reshape([1] * rank + [-1]))
    weighed = ctx.elementwise("PROD", ctx.cast(combined, carrier), weights)
    return ctx.wrapped(reduce(ctx, "SUM", weighed, [rank]), dtype)


def bit_weights(carrier: torch.dtype) -> torch.Tensor:
    """1, 2, 4, ... and for the sign bit the smallest integer (two's complement)."""
    sign = torch.iinfo(carrier).bits - 1
    positive = [1 << bit for bit in range(sign)]
    return torch.tensor([*positive, -(1 << sign)], dtype=carrier)


def bits(ctx: ConversionContext, x: ITensor, carrier: torch.dtype) -> ITensor:
    """Bit i along the last axis (of size 1): floor(x / 2^i) is odd; the last one is the sign."""
    rank = ctx.rank(x)
    positions = bit_weights(carrier)
    # 2^31 is not an int32: its bit is the sign of the quotient by 2^30
    positions[-1] = positions[-2]
    last_axis = [1] * (rank - 1) + [-1]
    shifted = ctx.elementwise(
        "FLOOR_DIV", x, ctx.constant(positions.reshape(last_axis))
    )
    halves = torch.ones(len(positions), dtype=carrier)
    halves[-1] = 2
    shifted = ctx.elementwise(
        "FLOOR_DIV", shifted, ctx.constant(halves.reshape(last_axis))
    )
    two = ctx.like_scalar(shifted, 2)
    even = ctx.elementwise("PROD", ctx.elementwise("FLOOR_DIV", shifted, two), two)
    return ctx.unary("NOT", ctx.elementwise("EQUAL", shifted, even))


@for_each(("left", "lshift"), ("right", "rshift"))
def _register_shift(direction: str, short: str) -> None:
    @converter(
        f"aten::bitwise_{direction}_shift.Tensor",
        f"aten::bitwise_{direction}_shift.Tensor_Scalar",
        f"aten::bitwise_{direction}_shift.Scalar_Tensor",
        f"aten::__{short}__.Scalar",
        f"aten::__{short}__.Tensor",
    )
    def shift(
        ctx: ConversionContext, x: Tensor | Number, other: Tensor | Number
    ) -> ITensor:
        dtype = ctx.promoted(x, other)
        a, positions = ctx.operands(x, other, dtype=dtype)
        return SHIFTS[direction](ctx, a, positions, dtype)


def powers(ctx: ConversionContext, exponents: ITensor, carrier: torch.dtype) -> ITensor:
    """2^exponent from a table, for exponents within it. The last entry, for the sign bit, is the
    smallest integer.
    """
    table = ctx.constant(bit_weights(carrier))
    return gathered(ctx, table, ctx.cast(exponents, torch.int32), 0)


def own_bits(dtype: torch.dtype) -> int:
    """The number of bits of the dtype. Without INT64 in TensorRT, int64 has 32 bits."""
    return min(torch.iinfo(dtype).bits, torch.iinfo(dtypes.carrier(dtype)).bits)


def shift_left(
    ctx: ConversionContext, x: ITensor, positions: ITensor, dtype: torch.dtype
) -> ITensor:
    """x 2^positions with wrap-around; 0 for a negative shift, or a shift by at least the number of
    bits
    """
    bits = own_bits(dtype)
    carrier = dtypes.carrier(dtype)
    product = ctx.elementwise(
        "PROD", x, powers(ctx, within(ctx, positions, bits - 1), carrier)
    )
    outside = ctx.elementwise(
        "OR", less(ctx, positions, 0), ctx.unary("NOT", less(ctx, positions, bits))
    )
    return choose(ctx, outside, 0, ctx.wrapped(product, dtype), dtype)


def shift_right(
    ctx: ConversionContext, x: ITensor, positions: ITensor, dtype: torch.dtype
) -> ITensor:
    """floor(x / 2^positions); only the sign remains for a negative shift, or a shift by at least
    the number of bits
    """
    bits = own_bits(dtype)
    carrier = dtypes.carrier(dtype)
    most = bits - 1 if dtype.is_signed else bits
    positions = choose(ctx, less(ctx, positions, 0), most, positions, dtype)
    positions = within(ctx, positions, most)
    first = ctx.elementwise(
        "MIN", positions, ctx.like_scalar(positions, torch.iinfo(carrier).bits - 2)
    )
    # 2^31 is not an int32: the last bit is shifted in a second step
    remaining = ctx.elementwise("SUB", positions, first)
    for step in (first, remaining):
        x = ctx.elementwise("FLOOR_DIV", x, powers(ctx, step, carrier))
    return ctx.wrapped(x, dtype)


def within(ctx: ConversionContext, positions: ITensor, most: int) -> ITensor:
    """the shift clamped to 0..most"""
    limited = ctx.elementwise(
        "MIN",
        ctx.elementwise("MAX", positions, ctx.like_scalar(positions, 0)),
        ctx.like_scalar(positions, most),
    )
    return ctx.copy_sizes(positions, limited)


SHIFTS = {"left": shift_left, "right": shift_right}
