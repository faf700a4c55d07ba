"""Scalars that are known only when the engine runs: sizes of dynamic axes, and numbers computed
from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING, Any

import sympy
import torch

from builder.engine import ITensor

if TYPE_CHECKING:
    from builder.conversion.lengths import Lengths
    from builder.conversion.values import Scalar


@dataclass(frozen=True, eq=False)
class DynamicScalar:
    """An int, float or bool that the network computes: `tensor` holds it with shape [1].

    Its operators add layers to the network of `ctx` if the result is not static: `n // 2 + 1` is a
    DynamicScalar, and `n - n` is 0.

    `expr` is its value as an expression of the named axes (sympy, exact for integers). Equal
    expressions are equal values. `zero_dim`: whether torch has a 0-d tensor here (a traced size),
    which has a higher promotion priority than a number. `doubles` is the value of a float in double
    precision (see doubles.py).
    """

    ctx: Lengths
    tensor: ITensor
    expr: sympy.Expr
    dtype: torch.dtype = torch.int64
    zero_dim: bool = False
    doubles: Any = None

    def __add__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("add", self, other)

    def __radd__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("add", other, self)

    def __sub__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("sub", self, other)

    def __rsub__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("sub", other, self)

    def __neg__(self) -> Any:
        return 0 - self

    def __mul__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("mul", self, other)

    def __rmul__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("mul", other, self)

    def __floordiv__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("floordiv", self, other)

    def __rfloordiv__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("floordiv", other, self)

    def __truediv__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("truediv", self, other)

    def __rtruediv__(self, other: Scalar) -> Any:
        return self.ctx.arithmetic("truediv", other, self)


def of_lengths(scalar: DynamicScalar) -> bool:
    """Whether it is computed from lengths of axes only, as most sizes are: their symbols are never
    negative.
    """
    return all(symbol.is_nonnegative for symbol in scalar.expr.free_symbols)


Size = int | DynamicScalar
"""The length of an axis."""


def expression(value: object) -> sympy.Expr:
    """The symbolic form of a static number or a DynamicScalar."""
    if isinstance(value, DynamicScalar):
        return value.expr
    return sympy.sympify(value)


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are known to be equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(expression(a) == expression(b))


class Minimum(sympy.Min):  # type: ignore[misc]
    """sympy.Min without simplification, also where sympy rebuilds an expression around it.

    Simplification compares all arguments, which takes seconds for long expressions. Conversion has
    compared their bounds.
    """

    def __new__(cls, *args: Any) -> Any:
        return super().__new__(cls, *args, evaluate=False)


class Maximum(sympy.Max):  # type: ignore[misc]
    """sympy.Max without simplification; see Minimum."""

    def __new__(cls, *args: Any) -> Any:
        return super().__new__(cls, *args, evaluate=False)


Span = tuple[Any, Any]
"""The least and the greatest value: fractions in intermediate results, infinite if not known."""

_INFINITY = float("inf")


def bounds(
    expr: sympy.Expr, ranges: Mapping[sympy.Symbol, tuple[int, int]]
) -> Span | None:
    """The minimum and maximum of an expression over all sizes in the ranges; None if they are not
    known.

    Computed by interval arithmetic, once directly and once with each floor(e) as a variable between
    e - 1 and e, which preserves that the terms of `n - n // 2` depend on each other. The tighter
    bounds are returned.
    """
    return _bounds(expr, frozenset(ranges.items()))


@lru_cache(maxsize=65536)
def _bounds(
    expr: sympy.Expr, items: frozenset[tuple[sympy.Symbol, tuple[int, int]]]
) -> Span | None:
    ranges = dict(items)
    spans = [
        span
        for span in (_interval(expr, ranges), _relaxed(expr, ranges))
        if span is not None
    ]
    if not spans:
        return None
    low = max(span[0] for span in spans)
    high = min(span[1] for span in spans)
    if (low, high) == (-_INFINITY, _INFINITY):
        return None
    return (low, high)


def _interval(
    expr: sympy.Expr, ranges: Mapping[sympy.Symbol, tuple[int, int]]
) -> Span | None:
    """Interval arithmetic over sums, products, floors, minima and maxima."""
    if expr.is_Number:
        value = Fraction(int(expr.p), int(expr.q)) if expr.is_Rational else float(expr)
        return value, value
    if expr.is_Symbol:
        return ranges.get(expr) or ((0, _INFINITY) if expr.is_nonnegative else None)
    if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
        base = _interval(expr.base, ranges)
        if base is None:
            return None
        return _product([base] * int(expr.exp))
    combine = _COMBINE.get(expr.func)
    spans = [_interval(argument, ranges) for argument in expr.args]
    if combine is None or any(span is None for span in spans):
        return None
    return combine(spans)


def _product(spans: Sequence[Any]) -> Span:
    low, high = spans[0]
    for span in spans[1:]:
        ends = [_times(a, b) for a in (low, high) for b in span]
        low = min(ends)
        high = max(ends)
    return low, high


def _times(a: Any, b: int) -> Any:
    # 0 * inf is 0: the axis's own length is finite
    if a == 0 or b == 0:
        return 0
    return a * b


def _floor(spans: Sequence[Any]) -> Span:
    low, high = (
        value if abs(value) == _INFINITY else floor(value) for value in spans[0]
    )
    return low, high


def _least(spans: Sequence[Any]) -> Span:
    return min(span[0] for span in spans), min(span[1] for span in spans)


def _greatest(spans: Sequence[Any]) -> Span:
    return max(span[0] for span in spans), max(span[1] for span in spans)


_COMBINE: dict[Any, Callable[[Sequence[Any]], Span]] = {
    sympy.Add: lambda spans: (
        sum(span[0] for span in spans),
        sum(span[1] for span in spans),
    ),
    sympy.Mul: _product,
    sympy.floor: _floor,
    sympy.Min: _least,
    Minimum: _least,
    sympy.Max: _greatest,
    Maximum: _greatest,
}


def _relaxed(
    expr: sympy.Expr, ranges: Mapping[sympy.Symbol, tuple[int, int]]
) -> Span | None:
    """The interval of a sum with each floor(e) replaced by e, and by e - 1, as its coefficient's
    sign asks.
    """
    floors = [term for term in expr.as_coefficients_dict() if term.func is sympy.floor]
    if not floors:
        return None
    spans = []
    for upper in (False, True):
        swaps = {}
        for term in floors:
            lowered = (expr.coeff(term) > 0) != upper
            swaps[term] = term.args[0] - 1 if lowered else term.args[0]
        span = _interval(sympy.expand(expr.xreplace(swaps)), ranges)
        if span is None:
            return None
        spans.append(span)
    (low, _), (_, high) = spans
    return low, high
