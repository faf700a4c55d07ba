"""Running sums, products and extremes along an axis, and differences between neighbors.

TensorRT has a layer for sums only. The others are scans in doubling steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from builder.conversion import dtypes
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.joining import joined
from builder.conversion.converters.ordering import maximum_length
from builder.conversion.converters.reduction import accumulated
from builder.conversion.converters.select import sliced
from builder.conversion.decomposing import walked
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.layers import (
    choose,
    combine,
    copy_facts,
    equal,
    extremum,
    floating,
    gathered,
    is_nan,
)
from builder.conversion.registry import converter
from builder.conversion.spatial import iota
from builder.decompositions import DECOMPOSITIONS
from builder.engine import ITensor, trt

Combine = Callable[[Any, Any], Any]


@converter("aten::cumsum")
def cumsum(ctx: ConversionContext, x: ITensor, dim: int, dtype: int | None) -> ITensor:
    """The cumulative sum along an axis: ICumulativeLayer, or a scan in doubling steps if TensorRT
    has none
    """
    x = accumulated(ctx, x, dtype)
    if ctx.rank(x) == 0:
        return x
    return running_sum(ctx, x, ctx.axis(x, dim))


def running_sum(ctx: ConversionContext, x: ITensor, axis: int) -> ITensor:
    """The cumulative sum of a tensor with axes, which includes each element itself."""
    if not ctx.capabilities.has_layer("add_cumulative"):
        return scanned(ctx, x, axis, 0, partial(ctx.elementwise, "SUM"))
    along = ctx.constant(torch.tensor(axis, dtype=torch.int32))
    layer = ctx.net.add_cumulative(
        x, along, trt.CumulativeOperation.SUM, exclusive=False, reverse=False
    )
    return copy_facts(ctx, x, layer.get_output(0))


@converter("aten::cumprod")
def cumprod(ctx: ConversionContext, x: ITensor, dim: int, dtype: int | None) -> ITensor:
    """The cumulative product along an axis"""
    x = accumulated(ctx, x, dtype)
    if ctx.rank(x) == 0:
        return x
    return scanned(ctx, x, ctx.axis(x, dim), 1, partial(ctx.elementwise, "PROD"))


def scanned(
    ctx: ConversionContext, x: ITensor, axis: int, neutral: float, combine: Combine
) -> ITensor:
    """A Hillis-Steele scan: combine the tensor with itself shifted by 1, 2, 4, ... positions, log2
    of the length times.
    """
    length = maximum_length(ctx, ctx.size(x, axis))
    if length is None:
        raise Unconvertible(f"the length of axis {axis} is not bounded by the profiles")
    result = x
    for step in range(math.ceil(math.log2(max(length, 1)))):
        result = ctx.copy_sizes(
            x, combine(result, moved(ctx, result, axis, 1 << step, neutral))
        )
        ctx.remember_dtype(result, ctx.dtype(x))
    return result


def moved(
    ctx: ConversionContext, x: ITensor, axis: int, count: int, fill: float
) -> ITensor:
    """x shifted toward the end of an axis, with `fill` at the start."""
    if ctx.loops and not ctx.capabilities.takes("SLICE.FILL.IN_LOOP", x.dtype.name):
        return _shifted_by_index(ctx, x, axis, count, fill)
    sizes = ctx.sizes(x)
    starts = [0] * len(sizes)
    starts[axis] = -count
    outside = ctx.constant(torch.tensor(fill, dtype=ctx.dtype(x)))
    return ctx.slice(x, starts, sizes, mode="FILL", fill=outside)


def _shifted_by_index(
    ctx: ConversionContext, x: ITensor, axis: int, count: int, fill: float
) -> ITensor:
    """The same in a loop body without FILL support, by indices that are known outside the loop.

    A concatenation with the fill value makes the builder fail if another axis is dynamic
    ("remainder_last_tensor_map", Myelin's loop_unroll.cpp).
    """
    size = ctx.size(x, axis)
    positions = torch.arange(maximum_length(ctx, size) or 0) - count
    shape = [1] * ctx.rank(x)
    shape[axis] = -1
    is_inside: Any = (positions >= 0).reshape(shape)
    source: Any = positions.clamp(min=0)
    if isinstance(size, DynamicScalar):
        is_inside = sliced(ctx, ctx.constant(is_inside), axis, 0, size)
        source = sliced(ctx, ctx.constant(source), 0, 0, size)
    return ctx.copy_sizes(
        x, choose(ctx, is_inside, gathered(ctx, x, source, axis), fill, ctx.dtype(x))
    )


@converter("aten::diff")
def diff(
    ctx: ConversionContext,
    x: ITensor,
    n: int,
    dim: int,
    prepend: ITensor | None,
    append: ITensor | None,
) -> ITensor:
    """x[1:] - x[:-1] along an axis, n times; for bools, whether they differ"""
    axis = ctx.axis(x, dim)
    if n:
        x = joined(
            ctx, [tensor for tensor in (prepend, x, append) if tensor is not None], axis
        )
    for _ in range(n):
        length = ctx.maximum(ctx.size(x, axis) - 1, 0)
        x = _difference(
            ctx, sliced(ctx, x, axis, 1, length), sliced(ctx, x, axis, 0, length)
        )
    return x


def _difference(ctx: ConversionContext, later: ITensor, earlier: ITensor) -> ITensor:
    if ctx.dtype(later) == torch.bool:
        return ctx.copy_sizes(later, ctx.elementwise("XOR", later, earlier))
    return ctx.copy_sizes(later, combine(ctx, "SUB", later, earlier))


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
    best = scanned(ctx, comparable, axis, identity, partial(extremum, ctx, operation))
    shape: list[Size] = [1] * ctx.rank(x)
    shape[axis] = ctx.size(x, axis)
    positions = ctx.reshape(iota(ctx, ctx.size(x, axis), torch.int32), shape)
    reached = equal(ctx, comparable, best)
    if dtype.is_floating_point:
        reached = ctx.elementwise("OR", reached, is_nan(ctx, comparable))
    reached_at = ctx.copy_sizes(x, choose(ctx, reached, positions, 0, torch.int32))
    last = scanned(ctx, reached_at, axis, 0, partial(ctx.elementwise, "MAX"))
    return ctx.cast(best, dtype), ctx.cast(last, torch.int64)


@converter("aten::cummax")
def cummax(ctx: ConversionContext, x: ITensor, dim: int) -> Any:
    """The cumulative maximum along an axis, and its last index"""
    return extremes(ctx, x, dim, "MAX")


@converter("aten::cummin")
def cummin(ctx: ConversionContext, x: ITensor, dim: int) -> Any:
    """The cumulative minimum along an axis, and its last index"""
    return extremes(ctx, x, dim, "MIN")


SUM_OF_EXPONENTIALS = DECOMPOSITIONS["aten::logaddexp"]


@converter("aten::logcumsumexp")
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
