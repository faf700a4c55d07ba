"""Sums, products, means, extremes, any and all over axes: one IReduceLayer each."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.evaluators.prim import dtype_of_code
from builder.conversion.layers import NAN_UNDEFINED, combine, floating, reduce
from builder.conversion.registry import converter, for_each
from builder.engine import ITensor

Axes = list[int] | int | None

LAYERS = {"sum": "SUM", "prod": "PROD", "mean": "AVG"}


@for_each(("sum", "dim_IntList"), ("prod", "dim_int"), ("mean", "dim"))
def _register(name: str, overload: str) -> None:
    @converter(f"aten::{name}", f"aten::{name}.{overload}")
    def by_axes(
        ctx: ConversionContext,
        x: ITensor,
        dim: Axes = None,
        keepdim: bool = False,
        dtype: int | None = None,
    ) -> ITensor:
        return reduce_dims(
            ctx, LAYERS[name], accumulated(ctx, x, dtype), dim, keepdim=keepdim
        )


def accumulated(
    ctx: ConversionContext, x: ITensor, dtype: int | torch.dtype | None
) -> ITensor:
    """x in the requested dtype. By default integers and bools are summed as int64, as in
    PyTorch.
    """
    target = dtype_of_code(dtype)
    if target is None and not ctx.dtype(x).is_floating_point:
        target = torch.int64
    if target is None:
        return x
    return ctx.cast(x, target)


def axes_of(ctx: ConversionContext, x: ITensor, dim: Axes) -> list[int]:
    """The axes of `dim`, all for None and []. A 0-d tensor has none."""
    if ctx.rank(x):
        return ctx.axes(x, dim)
    return []


def reduce_dims(
    ctx: ConversionContext,
    operation: str,
    x: ITensor,
    dim: Axes,
    *,
    keepdim: bool = False,
) -> ITensor:
    """The reduction over the axes of `dim`, over all for None and []; 0-d tensors pass.

    Bools are computed as int32 and compared with 0: the maximum of no elements is the smallest
    integer, which is not above 0.
    """
    dtype = ctx.dtype(x)
    axes = axes_of(ctx, x, dim)
    if dtype != torch.bool:
        return reduce(ctx, operation, x, axes, keepdim=keepdim)
    result = reduce(ctx, operation, ctx.cast(x, torch.int32), axes, keepdim=keepdim)
    return ctx.elementwise("GREATER", result, ctx.like_scalar(result, 0))


@for_each(("max", "MAX", "largest"), ("min", "MIN", "smallest"))
def _register_extreme(name: str, operation: str, adjective: str) -> None:
    @converter(f"aten::a{name}", f"aten::{name}", note=NAN_UNDEFINED)
    def by_axes(
        ctx: ConversionContext, x: ITensor, dim: Axes = None, keepdim: bool = False
    ) -> ITensor:
        return reduce_dims(ctx, operation, x, dim, keepdim=keepdim)

    by_axes.__doc__ = f"The {adjective} over axes, or of all elements"


@converter("aten::aminmax", note=NAN_UNDEFINED)
def aminmax(ctx: ConversionContext, x: ITensor, dim: Axes, keepdim: bool) -> Any:
    """The smallest and the largest, over one axis or all"""
    return reduce_dims(ctx, "MIN", x, dim, keepdim=keepdim), reduce_dims(
        ctx, "MAX", x, dim, keepdim=keepdim
    )


@for_each(("any", "MAX"), ("all", "MIN"))
def _register_truth(name: str, operation: str) -> None:
    @converter(f"aten::{name}.dim", f"aten::{name}.dims", f"aten::{name}")
    def by_axes(
        ctx: ConversionContext, x: ITensor, dim: Axes = None, keepdim: bool = False
    ) -> ITensor:
        return truth(ctx, operation, x, dim, keepdim)


def truth(
    ctx: ConversionContext, operation: str, x: ITensor, dim: Axes, keepdim: bool
) -> ITensor:
    """Whether any (MAX) or all (MIN) elements are nonzero; uint8 returns uint8.

    A sum would cancel 1 and -1. An empty list means no axis here, unlike in other reductions, as in
    PyTorch.
    """
    if dim == []:
        result = ctx.cast(x, torch.bool)
    else:
        result = reduce_dims(
            ctx, operation, ctx.cast(x, torch.bool), dim, keepdim=keepdim
        )
    if ctx.dtype(x) == torch.uint8:
        return ctx.cast(result, torch.uint8)
    return result


@converter("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(ctx: ConversionContext, x: ITensor, dim: Axes) -> ITensor:
    """The number of nonzero elements"""
    return reduce_dims(ctx, "SUM", ctx.cast(ctx.cast(x, torch.bool), torch.int64), dim)


@converter("aten::logsumexp", "aten::special_logsumexp")
def logsumexp(ctx: ConversionContext, x: ITensor, dim: Axes, keepdim: bool) -> ITensor:
    """m + log(sum(exp(x - m))), m the maximum, so that exp cannot overflow; an infinite m counts as
    0, because inf - inf is NaN
    """
    x = floating(ctx, x)
    finite = torch.finfo(ctx.dtype(x))
    # Clamping an infinite maximum keeps x - m at -inf or inf: the result is what PyTorch's
    # replacement by 0 gives.
    largest = combine(
        ctx,
        "MIN",
        combine(ctx, "MAX", reduce_dims(ctx, "MAX", x, dim, keepdim=True), finite.min),
        finite.max,
    )
    total = reduce_dims(
        ctx, "SUM", ctx.unary("EXP", combine(ctx, "SUB", x, largest)), dim, keepdim=True
    )
    result = combine(ctx, "SUM", ctx.unary("LOG", total), largest)
    axes = axes_of(ctx, x, dim)
    if keepdim:
        return result
    return ctx.squeeze(result, axes)
