"""Variance, standard deviation and norms."""

from __future__ import annotations

import math
from typing import Any

import torch

from builder.conversion import scalars
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.casting import in_dtype
from builder.conversion.converters.reduction import Axes, axes_of, reduce_dims
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.layers import (
    NAN_UNDEFINED,
    choose,
    combine,
    equal,
    half_as_float32,
    reduce,
)
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Number
from builder.engine import ITensor

NAN_OF_EXTREMES = f"{NAN_UNDEFINED} for the orders inf and -inf"


@for_each("var", "std", "var_mean", "std_mean")
def _register(name: str) -> None:
    with_mean = name.endswith("mean")

    @half_as_float32
    def results(
        ctx: ConversionContext, x: ITensor, dim: Axes, by: Number, keepdim: bool
    ) -> Any:
        spread, mean = moments(ctx, x, dim, by, keepdim)
        if name.startswith("std"):
            spread = ctx.unary("SQRT", spread)
        return (spread, mean) if with_mean else spread

    @converter(f"aten::{name}", f"aten::{name}.dim", f"aten::{name}.correction")
    def by_axes(
        ctx: ConversionContext,
        x: ITensor,
        dim: Axes = None,
        unbiased: bool = True,
        keepdim: bool = False,
        correction: Number | None = None,
    ) -> Any:
        by = int(unbiased) if correction is None else correction
        return results(ctx, x, dim, by, keepdim)


def moments(
    ctx: ConversionContext, x: ITensor, dim: Axes, correction: float, keepdim: bool
) -> tuple[Any, Any]:
    """Variance (sum of squared differences from the mean over n - correction, in two passes) and
    mean.
    """
    axes = axes_of(ctx, x, dim)
    mean = reduce(ctx, "AVG", x, axes, keepdim=True)
    centered = combine(ctx, "SUB", x, mean)
    squares = combine(ctx, "PROD", centered, centered)
    if correction == 0:
        variance = reduce(ctx, "AVG", squares, axes, keepdim=keepdim)
    else:
        total = reduce(ctx, "SUM", squares, axes, keepdim=keepdim)
        variance = combine(ctx, "DIV", total, degrees(ctx, x, axes, correction))
    return variance, mean if keepdim else ctx.squeeze(mean, axes)


def degrees(
    ctx: ConversionContext, x: ITensor, axes: list[int], correction: float
) -> Any:
    """max(n - correction, 0) of the number n of elements of the axes, as a float or
    DynamicScalar.
    """
    count = math.prod(ctx.size(x, axis) for axis in axes)
    if isinstance(count, DynamicScalar):
        positive = ctx.maximum(count - correction, 0)
        return scalars.convert(ctx, positive, torch.float32)
    return float(max(count - correction, 0))


@half_as_float32
def vector_norm(
    ctx: ConversionContext,
    x: ITensor,
    order: float,
    dim: Axes,
    *,
    keepdim: bool = False,
) -> ITensor:
    """(sum |x|^order)^(1/order); the largest or smallest |x| for inf and -inf; the number of
    nonzero elements for 0.
    """

    def reduced(operation: str, values: ITensor) -> ITensor:
        return reduce_dims(ctx, operation, values, dim, keepdim=keepdim)

    if order == 2:
        return ctx.unary("SQRT", reduced("SUM", combine(ctx, "PROD", x, x)))
    if order == 0:
        is_zero = equal(ctx, x, 0.0)
        return reduced("SUM", choose(ctx, is_zero, 0.0, 1.0, ctx.dtype(x)))
    size = ctx.unary("ABS", x)
    if order in (torch.inf, -torch.inf):
        return reduced("MAX" if order > 0 else "MIN", size)
    if order == 1:
        return reduced("SUM", size)
    total = reduced("SUM", combine(ctx, "POW", size, float(order)))
    return combine(ctx, "POW", total, 1 / order)


@converter("aten::linalg_vector_norm", note=NAN_OF_EXTREMES)
def linalg_vector_norm(
    ctx: ConversionContext,
    x: ITensor,
    ord: float,
    dim: Axes,
    keepdim: bool,
    dtype: int | None,
) -> ITensor:
    """The order-norm over axes"""
    return vector_norm(ctx, in_dtype(ctx, x, dtype), ord, dim, keepdim=keepdim)


@converter(
    "aten::norm.Scalar",
    "aten::norm.ScalarOpt_dtype",
    "aten::norm.ScalarOpt_dim",
    "aten::norm.ScalarOpt_dim_dtype",
    note=NAN_OF_EXTREMES,
)
@converter("aten::frobenius_norm.dim")
def norm(
    ctx: ConversionContext,
    x: ITensor,
    p: float | None = None,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: int | None = None,
) -> ITensor:
    """The p-norm over axes, or of all elements, computed in `dtype`"""
    order = 2 if p is None else p
    return vector_norm(ctx, in_dtype(ctx, x, dtype), order, dim, keepdim=keepdim)


@converter("aten::linalg_norm", note=NAN_OF_EXTREMES)
@converter("aten::linalg_matrix_norm", note=NAN_UNDEFINED)
@converter("aten::linalg_norm.ord_str", "aten::linalg_matrix_norm.str_ord")
def linalg_norm(
    ctx: ConversionContext,
    x: ITensor,
    ord: float | str | None,
    dim: Axes,
    keepdim: bool,
    dtype: int | None,
) -> ITensor:
    """A vector norm of one axis (of all elements without `ord`), a matrix norm of two"""
    x = in_dtype(ctx, x, dtype)
    if ord is None or ord == "fro":
        return vector_norm(ctx, x, 2, dim, keepdim=keepdim)
    if isinstance(ord, str):
        raise Unconvertible(
            f"the norm {ord!r} needs singular values, which TensorRT has no layer for"
        )
    if dim is None:
        axes = ctx.axes(x, None)
    else:
        # in the given order: the first has the rows
        axes = [ctx.axis(x, axis) for axis in ([dim] if isinstance(dim, int) else dim)]
    if len(axes) == 1:
        return vector_norm(ctx, x, ord, axes, keepdim=keepdim)
    return matrix_norm(ctx, x, ord, axes, keepdim)


@half_as_float32
def matrix_norm(
    ctx: ConversionContext, x: ITensor, order: float, axes: list[int], keepdim: bool
) -> ITensor:
    """The matrix norms that are computed by sums and extremes; axes are (rows, columns)."""
    if abs(order) not in (1, torch.inf):
        raise Unconvertible(
            f"the matrix norm of order {order} needs singular values, which TensorRT has no"
            " layer for"
        )
    rows, columns = axes
    summed, compared = (rows, columns) if abs(order) == 1 else (columns, rows)
    sums = reduce(ctx, "SUM", ctx.unary("ABS", x), [summed], keepdim=True)
    result = reduce(ctx, "MAX" if order > 0 else "MIN", sums, [compared], keepdim=True)
    # the maximum of no elements is -inf, the norm of no elements 0
    if ctx.size(sums, compared) == 0 and order > 0:
        result = combine(ctx, "MAX", result, 0.0)
    if keepdim:
        return result
    return ctx.squeeze(result, axes)
