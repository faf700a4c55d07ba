"""Cumulative extremes and log-sum-exp along an axis, by scans in doubling steps, because TensorRT
has no layer for them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from builder.conversion import dtypes
from builder.conversion.context import ConversionContext
from builder.conversion.converters.cumulative import scanned
from builder.conversion.decomposing import walked
from builder.conversion.dynamic import Size
from builder.conversion.layers import choose, equal, extremum, floating, is_nan
from builder.conversion.registry import converter
from builder.conversion.spatial import iota
from builder.decompositions import DECOMPOSITIONS
from builder.engine import ITensor


def extremes(
    ctx: ConversionContext, x: ITensor, dim: int, operation: str
) -> tuple[Any, Any]:
    """The cumulative maximum or minimum, and its last index. From the first NaN on it is NaN."""
    dtype = ctx.dtype(x)
    if ctx.rank(x) == 0:
        return x, ctx.tensor(torch.tensor(0))
    axis = ctx.axis(x, dim)
    comparable = x
    if not dtype.is_floating_point and dtype != torch.int64:
        comparable = ctx.cast(x, torch.int32)
    identity = dtypes.reduction_identity(ctx.dtype(comparable), operation)
    best = scanned(
        ctx, comparable, axis, identity, lambda a, b: extremum(ctx, operation, a, b)
    )
    shape: list[Size] = [1] * ctx.rank(x)
    shape[axis] = ctx.size(x, axis)
    positions = ctx.reshape(iota(ctx, ctx.size(x, axis), torch.int32), shape)
    reached = equal(ctx, comparable, best)
    if dtype.is_floating_point:
        reached = ctx.elementwise("OR", reached, is_nan(ctx, comparable))
    reached_at = ctx.copy_sizes(x, choose(ctx, reached, positions, 0, torch.int32))
    last = scanned(ctx, reached_at, axis, 0, lambda a, b: ctx.elementwise("MAX", a, b))
    return ctx.cast(best, dtype), ctx.cast(last, torch.int64)


@converter("aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)")
def cummax(ctx: ConversionContext, x: ITensor, dim: int) -> Any:
    """The cumulative maximum along an axis, and its last index"""
    return extremes(ctx, x, dim, "MAX")


@converter("aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)")
def cummin(ctx: ConversionContext, x: ITensor, dim: int) -> Any:
    """The cumulative minimum along an axis, and its last index"""
    return extremes(ctx, x, dim, "MIN")


SUM_OF_EXPONENTIALS = DECOMPOSITIONS["aten::logaddexp"]


@converter("aten::logcumsumexp(Tensor self, int dim) -> Tensor")
def logcumsumexp(ctx: ConversionContext, x: ITensor, dim: int) -> ITensor:
    """log of the sum of exp of all elements up to each, in doubling steps of logaddexp"""
    x = floating(ctx, x)
    if ctx.rank(x) == 0:
        return x
    return scanned(
        ctx,
        x,
        ctx.axis(x, dim),
        -math.inf,
        lambda a, b: walked(ctx, SUM_OF_EXPONENTIALS, (a, b)),
    )
