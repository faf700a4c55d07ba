"""Exact double-precision arithmetic on sizes.

TorchScript's floats are doubles, TensorRT's are float32, and `int(x.size(2) * 0.7)` may depend on
the last bit. Such numbers are computed here in double precision, for all lengths of the axis that
the profiles allow. The network looks them up when they become integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import sympy
import torch

from builder.conversion.dynamic import DynamicScalar, bounds
from builder.conversion.values import Scalar

if TYPE_CHECKING:
    from builder.conversion.lengths import Lengths


LONGEST = 1 << 16
"""The largest length with a table. Above it the engine computes in float32."""

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "truediv": torch.div,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "min": torch.minimum,
    "max": torch.maximum,
    "pow": torch.pow,
}


@dataclass(frozen=True, eq=False)
class Doubles:
    """A float as a function of a length: `values[n]` (float64) for `size` n, from `least` on."""

    size: DynamicScalar
    values: torch.Tensor
    least: int


def of(ctx: Lengths, number: DynamicScalar) -> Doubles | None:
    """The table of a float, or of a length; None for 0-d tensors (which are float32 in torch, too)
    and unknown lengths.
    """
    if number.zero_dim:
        return None
    table: Doubles | None = number.doubles
    if table is not None:
        return table
    if number.dtype == torch.int64:
        return of_length(ctx, number)
    return None


def of_length(ctx: Lengths, length: DynamicScalar) -> Doubles | None:
    """The table of a length: the identity. None if it may be negative or has no known bound."""
    span = bounds(length.expr, ctx.ranges())
    if span is None or span[0] < 0 or span[1] > LONGEST:
        return None
    return Doubles(
        length, torch.arange(int(span[1]) + 1, dtype=torch.float64), int(span[0])
    )


def binary(ctx: Lengths, operation: str, a: Scalar, b: Scalar) -> Doubles | None:
    """`a operation b`, if one is a static number or both depend on the same length."""
    tables = [
        of(ctx, value) if isinstance(value, DynamicScalar) else value
        for value in (a, b)
    ]
    if operation not in ARITHMETIC or any(table is None for table in tables):
        return None
    dynamic = [table for table in tables if isinstance(table, Doubles)]
    if any(table.size.expr != dynamic[0].size.expr for table in dynamic):
        return None
    values = []
    for table in tables:
        if isinstance(table, Doubles):
            values.append(table.values)
        else:
            values.append(torch.tensor(table, dtype=torch.float64))
    return replace(dynamic[0], values=ARITHMETIC[operation](*values))


def mapped(
    ctx: Lengths,
    number: DynamicScalar,
    function: Callable[[torch.Tensor], torch.Tensor],
) -> Doubles | None:
    """A function of a float, value by value."""
    table = of(ctx, number)
    return table and replace(table, values=function(table.values))


def truncated(ctx: Lengths, table: Doubles) -> DynamicScalar:
    """The table's numbers truncated: by arithmetic if a ratio is equivalent, else by a lookup."""
    values = torch.nan_to_num(table.values, 0.0, 0.0, 0.0).trunc().long()
    ratio = ratio_of(values, table.least)
    if ratio is not None:
        scaled = table.size * ratio.numerator
        return scaled // ratio.denominator  # type: ignore[no-any-return]
    result = ctx.net.add_gather(ctx.constant(values), table.size.tensor, 0).get_output(
        0
    )
    possible = values[table.least :]
    # equal for equal numbers
    name = f"{table.size.expr} looked up in {hash(values.numpy().tobytes())}"
    symbol = sympy.Symbol(name, integer=True, nonnegative=bool((possible >= 0).all()))
    return DynamicScalar(ctx, result, sympy.Min(symbol, int(possible.max())))


def ratio_of(values: torch.Tensor, least: int) -> Fraction | None:
    """A small ratio p / q with values[n] = floor(n p / q) for all n from `least` on, or None."""
    last = len(values) - 1
    lengths = torch.arange(least, last + 1)
    expected = values[least:]
    if last < 1:
        return None
    for numerator, denominator in (
        (int(values[last]), last),
        (2 * int(values[last]) + 1, 2 * last),
    ):
        ratio = Fraction(numerator, denominator).limit_denominator(64)
        if torch.equal(lengths * ratio.numerator // ratio.denominator, expected):
            return ratio
    return None
