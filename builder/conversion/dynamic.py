"""Scalars that are known only when the engine runs: sizes of dynamic axes and what is computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch


@dataclass(frozen=True, eq=False)
class DynamicScalar:
    """An int, float or bool that the network computes: `tensor` holds it with shape [1].

    `expr` says what it is in terms of the named axes (sympy, exact for integers); equal expressions are equal values.
    `zero_dim` says that torch has a 0-d tensor here (a traced size), which promotes above a plain number.
    """

    tensor: Any
    expr: sympy.Expr
    dtype: torch.dtype = torch.int64
    zero_dim: bool = False


Size = int | DynamicScalar
"""The length of an axis."""


def expression(value: Any) -> sympy.Expr:
    """The symbolic form of a static number or a DynamicScalar."""
    return value.expr if isinstance(value, DynamicScalar) else sympy.sympify(value)


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are surely equal; False means that nothing is known."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(expression(a) == expression(b))


def bounds(expr: sympy.Expr, ranges: dict[sympy.Symbol, tuple[int, int]]) -> tuple[int, int] | None:
    """The least and greatest value of a linear expression over the profile's ranges; None where it is not linear."""
    low = high = 0
    for term, coefficient in expr.as_coefficients_dict().items():
        if not coefficient.is_integer:
            return None
        span = (1, 1) if term == 1 else ranges.get(term)
        if span is None:
            return None
        ends = sorted((int(coefficient) * span[0], int(coefficient) * span[1]))
        low, high = low + ends[0], high + ends[1]
    return low, high
