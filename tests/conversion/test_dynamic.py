"""Bounds of sizes: what the ranges of the axes prove of an expression, and nothing more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from builder.conversion.dynamic import bounds

N = sympy.Symbol("n", integer=True, nonnegative=True)
M = sympy.Symbol("m", integer=True, nonnegative=True)
UNKNOWN = sympy.Symbol("unknown")

KNOWN: dict[str, tuple[Callable[[], sympy.Expr], tuple[Any, Any]]] = {
    "a number": (lambda: sympy.Integer(3), (3, 3)),
    "a size": (lambda: N, (1, 8)),
    "a sum": (lambda: N + M - 1, (2, 11)),
    "a difference of the same": (lambda: N - N, (0, 0)),
    "a negative multiple": (lambda: -2 * N, (-16, -2)),
    "a half": (lambda: sympy.floor(N / 2), (0, 4)),
    "what half leaves": (lambda: N - sympy.floor(N / 2), (0.5, 5)),
    "a product": (lambda: N * M, (2, 32)),
    "a minimum": (lambda: sympy.Min(N, M), (1, 4)),
    "a maximum": (lambda: sympy.Max(N, M), (2, 8)),
}
RANGES = {N: (1, 8), M: (2, 4)}


@pytest.mark.parametrize("name", KNOWN)
def test_bounds_are_as_narrow_as_the_ranges_allow(name: str) -> None:
    make, (low, high) = KNOWN[name]
    assert bounds(make(), RANGES) == (low, high)


def test_unknown_values_have_no_bounds() -> None:
    assert bounds(UNKNOWN + N, RANGES) is None
    assert bounds(sympy.sin(N), RANGES) is None


def test_a_size_of_unknown_origin_is_never_negative() -> None:
    assert bounds(sympy.Symbol("x[0]", integer=True, nonnegative=True) + 1, {}) == (
        1,
        float("inf"),
    )


def expressions() -> st.SearchStrategy[sympy.Expr]:
    leaves = st.sampled_from([N, M, *(sympy.Integer(i) for i in range(-3, 4))])
    pairs = [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        sympy.Min,
        sympy.Max,
    ]
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda a, b, f: f(a, b), inner, inner, st.sampled_from(pairs)),
            st.builds(lambda a, d: sympy.floor(a / d), inner, st.integers(1, 4)),
        ),
        max_leaves=5,
    )


@given(expressions())
def test_values_are_within_bounds(expr: sympy.Expr) -> None:
    span = bounds(expr, RANGES)
    assert span is not None
    for n, m in itertools.product(range(1, 9), range(2, 5)):
        assert span[0] <= int(expr.subs({N: n, M: m})) <= span[1]
