"""Arithmetic and comparison of Python numbers and DynamicScalars, in Python if all are static."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch

from builder.conversion import doubles, dtypes
from builder.conversion.dynamic import (
    DynamicScalar,
    Maximum,
    Minimum,
    bounds,
    expression,
)
from builder.conversion.unconvertible import Unconvertible
from builder.conversion.values import Scalar
from builder.engine import ITensor

if TYPE_CHECKING:
    from builder.conversion.lengths import Lengths


@dataclass(frozen=True)
class Rule:
    """One operation: on Python numbers, on sympy expressions (None: unknown), and as an
    ElementWiseOperation.
    """

    python: Callable[[Any, Any], Any]
    symbolic: Callable[[Any, Any], Any] | None
    layer: str


def _floordiv(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    return sympy.floor(a / b)


ARITHMETIC = {
    "add": Rule(operator.add, operator.add, "SUM"),
    "sub": Rule(operator.sub, operator.sub, "SUB"),
    "mul": Rule(operator.mul, operator.mul, "PROD"),
    "floordiv": Rule(operator.floordiv, _floordiv, "FLOOR_DIV"),
    "truediv": Rule(operator.truediv, operator.truediv, "DIV"),
    "min": Rule(min, Minimum, "MIN"),
    "max": Rule(max, Maximum, "MAX"),
    "pow": Rule(operator.pow, operator.pow, "POW"),
}
COMPARISON: dict[str, tuple[Callable[[Any, Any], bool], str, bool]] = {
    "eq": (operator.eq, "EQUAL", False),
    "ne": (operator.ne, "EQUAL", True),
    "lt": (operator.lt, "LESS", False),
    "ge": (operator.ge, "LESS", True),
    "gt": (operator.gt, "GREATER", False),
    "le": (operator.le, "GREATER", True),
}


def binary(ctx: Lengths, operation: str, a: Scalar, b: Scalar) -> Any:
    """`a operation b`; a DynamicScalar if the value is known only at run time."""
    rule = ARITHMETIC[operation]
    if not isinstance(a, DynamicScalar) and not isinstance(b, DynamicScalar):
        return rule.python(a, b)
    if operation in ("min", "max"):
        extreme = _decided_extreme(ctx, operation, a, b)
        if extreme is not None:
            return extreme
    expr = None
    if rule.symbolic:
        expr = rule.symbolic(expression(a), expression(b))
    integral = operation != "truediv" and _integral(ctx, a, b)
    if expr is not None and expr.is_Integer and integral:
        return int(expr)
    for same_as, value in ((a, expression(a)), (b, expression(b))):
        if isinstance(same_as, DynamicScalar) and expr == value and integral:
            return same_as  # x + 0, x * 1
    dtype = torch.int64 if integral else torch.float32
    output = _computed(ctx, operation, a, b, dtype)
    exact = None
    if dtype.is_floating_point:
        exact = doubles.binary(ctx, operation, a, b)
    if expr is None:
        expr = unknown(output)
    return DynamicScalar(ctx, output, expr, dtype, doubles=exact)


def _decided_extreme(ctx: Lengths, operation: str, a: Scalar, b: Scalar) -> Any:
    """The one of a and b that is the `min` or `max` for every shape of the profiles, else None."""
    is_at_most = decided(ctx, "le", a, b)
    is_at_least = decided(ctx, "ge", a, b)
    if not is_at_most and not is_at_least:
        return None
    if operation == "min":
        return a if is_at_most else b
    return a if is_at_least else b


def _computed(
    ctx: Lengths, operation: str, a: Scalar, b: Scalar, dtype: torch.dtype
) -> ITensor:
    """`a operation b` as computed by the network in this dtype."""
    first = vector(ctx, a, dtype)
    second = vector(ctx, b, dtype)
    if operation == "floordiv" and dtype == torch.float32:
        return ctx.unary("FLOOR", ctx.elementwise("DIV", first, second))
    return ctx.elementwise(ARITHMETIC[operation].layer, first, second)


def truncated(ctx: Lengths, a: Scalar, b: Scalar) -> Any:
    """C's a / b, rounded toward zero as in TensorRT's integer division; the floor if neither is
    negative.
    """
    if all(decided(ctx, "ge", value, 0) for value in (a, b)):
        return a // b
    if not isinstance(a, DynamicScalar) and not isinstance(b, DynamicScalar):
        quotient = abs(a) // abs(b)
        if (a < 0) == (b < 0):
            return quotient
        return -quotient
    if not _integral(ctx, a, b):
        return convert(ctx, convert(ctx, a / b, torch.int64), torch.float32)
    output = ctx.elementwise(
        "DIV", *(vector(ctx, value, torch.int64) for value in (a, b))
    )
    return DynamicScalar(ctx, output, unknown(output))


def modulo(ctx: Lengths, a: Scalar, b: Scalar) -> Any:
    """Python's a % b: the sign of the divisor.

    Raises Unconvertible for a float that depends on data: the engine's quotient in float32
    may differ from PyTorch's in float64, and then the whole remainder does.
    """
    numbers = [v for v in (a, b) if isinstance(v, DynamicScalar) and not v.zero_dim]
    if not _integral(ctx, a, b) and any(doubles.of(ctx, v) is None for v in numbers):
        raise Unconvertible(
            "the remainder of a float that depends on data: an engine divides in float32,"
            " PyTorch in float64"
        )
    return a - a // b * b


def unary(ctx: Lengths, operation: str, a: DynamicScalar) -> DynamicScalar:
    """One IUnaryLayer on a DynamicScalar; `operation` is a UnaryOperation's name, and torch's in
    lower case.
    """
    output = ctx.unary(operation, a.tensor)
    return DynamicScalar(
        ctx,
        output,
        unknown(output),
        a.dtype,
        doubles=doubles.mapped(ctx, a, getattr(torch, operation.lower())),
    )


def compare(ctx: Lengths, operation: str, a: Scalar, b: Scalar) -> Any:
    """A bool; static if the axes' ranges determine it for every shape of the profiles."""
    python, layer, negate = COMPARISON[operation]
    if not isinstance(a, DynamicScalar) and not isinstance(b, DynamicScalar):
        return python(a, b)
    static = decided(ctx, operation, a, b)
    if static is not None:
        return static
    dtype = torch.int64 if _integral(ctx, a, b) else torch.float32
    output = ctx.elementwise(layer, *(vector(ctx, value, dtype) for value in (a, b)))
    if negate:
        output = ctx.unary("NOT", output)
    return DynamicScalar(ctx, output, unknown(output), torch.bool)


def decided(ctx: Lengths, operation: str, a: Scalar, b: Scalar) -> bool | None:
    """A comparison that the axes' ranges determine for every shape of the profiles, else None. Adds
    no layers.
    """
    python, _, _ = COMPARISON[operation]
    if not isinstance(a, DynamicScalar) and not isinstance(b, DynamicScalar):
        return python(a, b)
    if not _integral(ctx, a, b):
        return None
    span = _span(ctx, expression(a) - expression(b))
    if span is None:
        return None
    low, high = span
    if operation in ("eq", "ne"):
        if low == high:
            return python(low, 0)
        if low > 0 or high < 0:
            return operation == "ne"
        return None
    values = {python(low, 0), python(high, 0)}
    if len(values) == 1:
        return values.pop()
    return None


def _span(ctx: Lengths, difference: sympy.Expr) -> Any:
    """The bounds of a difference, over all iterations of loops whose counters are in it."""
    low = high = difference
    for counter in reversed(
        [symbol for symbol in ctx.counters if symbol in difference.free_symbols]
    ):
        slope = sympy.diff(difference, counter)
        trip_count = ctx.counters[counter]
        if slope.is_number:
            first, last = (0, trip_count - 1) if slope > 0 else (trip_count - 1, 0)
            low = low.subs(counter, first)
            high = high.subs(counter, last)
    if low == high:
        return bounds(difference, ctx.ranges())
    least = bounds(sympy.expand(low), ctx.ranges())
    most = bounds(sympy.expand(high), ctx.ranges())
    if least is None or most is None:
        return None
    return least[0], most[1]


def vector(ctx: Lengths, value: Scalar, dtype: torch.dtype) -> ITensor:
    """The number as an ITensor of shape [1] and this dtype (its carrier)."""
    if isinstance(value, DynamicScalar):
        return ctx.cast(value.tensor, dtypes.carrier(dtype))
    return ctx.constant(torch.tensor([value], dtype=dtypes.carrier(dtype)))


def convert(ctx: Lengths, value: Scalar, dtype: torch.dtype) -> Any:
    """Python's int(), float() or bool() of a number or DynamicScalar; int() truncates toward
    zero.
    """
    if not isinstance(value, DynamicScalar):
        if dtype == torch.int64:
            return math.trunc(value)
        if dtype == torch.bool:
            return bool(value)
        return float(value)
    if value.dtype == dtype:
        return value
    if value.doubles is not None and dtype == torch.int64:
        return doubles.truncated(ctx, value.doubles)
    output = ctx.cast(value.tensor, dtypes.carrier(dtype))
    keeps = value.dtype == torch.int64 and dtype == torch.float32
    exact = doubles.of(ctx, value) if keeps else None
    return DynamicScalar(
        ctx, output, value.expr if keeps else unknown(output), dtype, doubles=exact
    )


def _integral(ctx: Lengths, *values: Scalar) -> bool:
    return not any(ctx.dtype(value).is_floating_point for value in values)


def unknown(output: ITensor) -> sympy.Expr:
    """A new symbol for an unknown number that the network computes."""
    return sympy.Symbol(output.name)
