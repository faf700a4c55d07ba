"""Average and maximum pooling over one to three axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion import dtypes
from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import Size
from builder.conversion.layers import (
    NAN_UNDEFINED,
    choose,
    combine,
    copy_facts,
    less,
    reduce,
)
from builder.conversion.pools import Pool, is_global, may_drop, output_length, pooled
from builder.conversion.registry import converter, for_each
from builder.conversion.spatial import as_image, iota
from builder.conversion.values import PerAxis
from builder.engine import ITensor
from builder.graph_types import Node


def _global(ctx: ConversionContext, x: ITensor, operation: str) -> ITensor:
    """The reduction of all spatial axes, as the only window of each."""
    return reduce(ctx, operation, x, range(2, ctx.rank(x)), keepdim=True)


# Averages


def _average_over_padded(ctx: ConversionContext, x: ITensor, pool: Pool) -> ITensor:
    """Averages over the part of each window in the padded input: averages over whole windows,
    divided by the averages of ones.
    """
    means = pooled(ctx, x, "AVERAGE", pool, "window")
    sizes = [ctx.size(x, axis + 2) + 2 * pad for axis, pad in enumerate(pool.padding)]
    parts = _averages_of_ones(ctx, x, sizes, replace(pool, padding=[0] * len(sizes)))
    sizes_of_means = [1, 1, *ctx.sizes(means)[2:]]
    parts = ctx.slice(parts, [0] * len(sizes_of_means), sizes_of_means)
    return ctx.copy_sizes(means, ctx.elementwise("DIV", means, parts))


def _averages_of_ones(
    ctx: ConversionContext, x: ITensor, sizes: Sequence[Size], pool: Pool
) -> ITensor:
    """Averages over whole windows of ones with these spatial sizes, in the dtype of x."""
    one = ctx.constant(torch.ones([1] * ctx.rank(x), dtype=ctx.dtype(x)))
    ones = ctx.expand(one, [1, 1, *sizes])
    return pooled(ctx, ones, "AVERAGE", pool, "window")


def _average_inside(ctx: ConversionContext, x: ITensor, pool: Pool) -> ITensor:
    """Averages over the part of each window in the input: averages over whole windows, divided by
    the averages of ones.
    """
    means = pooled(ctx, x, "AVERAGE", pool, "window")
    parts = _averages_of_ones(ctx, x, ctx.sizes(x)[2:], pool)
    return ctx.copy_sizes(means, ctx.elementwise("DIV", means, parts))


def floats(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    """Refuses integers."""
    dtype = ctx.dtype(call.self)
    if dtype.is_floating_point:
        return None
    return f"TensorRT averages floating tensors only, the input is {dtype}"


@for_each(1, 2, 3)
def _register_average(axes: int) -> None:
    @converter(f"aten::avg_pool{axes}d", when=floats)
    def average(
        ctx: ConversionContext,
        x: ITensor,
        kernel_size: PerAxis,
        stride: PerAxis,
        padding: PerAxis,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None = None,
    ) -> Any:
        """The sum of each window, divided by the window's size, by its size within the (padded)
        input, or by `divisor`
        """
        image, undo = as_image(ctx, x, axes)
        pool = Pool.of(axes, kernel_size, stride, padding, 1, ceil_mode)
        if divisor_override is None:
            return undo(_average(ctx, image, pool, ceil_mode, count_include_pad))
        means = pooled(ctx, image, "AVERAGE", pool, "window")
        scale = math.prod(pool.window) / divisor_override
        return undo(combine(ctx, "PROD", means, scale))


def _average(
    ctx: ConversionContext,
    image: ITensor,
    pool: Pool,
    ceil_mode: bool,
    count_include_pad: bool,
) -> Any:
    """The mean over each window, or over its part inside the input."""
    if is_global(ctx, image, pool):
        return _global(ctx, image, "AVG")
    padded = any(pool.padding) or ceil_mode
    if padded and not count_include_pad:
        if may_drop(pool):
            # TensorRT refuses the layer if rounding up pads as much as a window
            return _average_inside(ctx, image, pool)
        return pooled(ctx, image, "AVERAGE", pool, "inside")
    if ceil_mode and not ctx.capabilities.takes("POOLING.PADDED_UP", image.dtype.name):
        return _average_over_padded(ctx, image, pool)
    return pooled(ctx, image, "AVERAGE", pool, "padded")


# Maxima


@for_each(1, 2, 3)
def _register_maximum(axes: int) -> None:
    @converter(
        f"aten::max_pool{axes}d",
        f"aten::max_pool{axes}d_with_indices",
        note=NAN_UNDEFINED,
    )
    def maximum(
        ctx: ConversionContext,
        node: Node,
        x: ITensor,
        kernel_size: PerAxis,
        stride: PerAxis,
        padding: PerAxis,
        dilation: PerAxis,
        ceil_mode: bool,
    ) -> Any:
        """The maximum of each window and, if used, its position in the flattened input; padding is
        -inf
        """
        image, undo = as_image(ctx, x, axes)
        pool = Pool.of(axes, kernel_size, stride, padding, dilation, ceil_mode)
        has_indices = node.outputsSize() > 1
        if has_indices and node.outputsAt(1).uses():
            return tuple(map(undo, _tapped(ctx, image, pool, indices=True)))
        maxima = undo(_maximum(ctx, image, pool))
        return (maxima, None) if has_indices else maxima


def _maximum(ctx: ConversionContext, x: ITensor, pool: Pool) -> Any:
    if is_global(ctx, x, pool):
        return _global(ctx, x, "MAX")
    if ctx.dtype(x).is_floating_point and all(step == 1 for step in pool.dilation):
        return pooled(ctx, x, "MAX", pool)
    return _tapped(ctx, x, pool, indices=False)[0]


def _tapped(
    ctx: ConversionContext, x: ITensor, pool: Pool, indices: bool
) -> tuple[Any, Any]:
    """The maximum over the elements of the window, one strided slice each; the first of equal ones
    determines the index.

    Used for dilation, integers and indices, which IPoolingLayer does not support.
    """
    lengths = [
        output_length(ctx, pool, axis, ctx.size(x, axis + 2))
        for axis in range(len(pool.window))
    ]
    identity = dtypes.reduction_identity(ctx.dtype(x), "MAX")
    padded = _padded(ctx, x, pool, lengths, identity)
    positions: Any = (
        _padded(ctx, _flat_positions(ctx, x), pool, lengths, 0) if indices else None
    )
    best: Any = None
    position: Any = None
    for tap in itertools.product(*map(range, pool.window)):
        value = _tap(ctx, padded, pool, lengths, tap)
        where: Any = _tap(ctx, positions, pool, lengths, tap) if indices else None
        if best is None:
            best = value
            position = where
        elif indices:
            better = _beats(ctx, value, best)
            best = choose(ctx, better, value, best)
            position = choose(ctx, better, where, position)
        else:
            best = copy_facts(ctx, best, ctx.elementwise("MAX", best, value))
    if indices:
        # after the first comparison the positions differ between channels and images
        position = ctx.expand(position, ctx.sizes(best))
    return best, position


def _beats(ctx: ConversionContext, value: ITensor, best: ITensor) -> ITensor:
    """value > best or value is NaN, as in PyTorch."""
    greater = less(ctx, best, value)
    if not ctx.dtype(value).is_floating_point:
        return greater
    return ctx.elementwise(
        "OR", greater, ctx.unary("NOT", ctx.elementwise("EQUAL", value, value))
    )


def _flat_positions(ctx: ConversionContext, x: ITensor) -> ITensor:
    """The position of each element in the flattened spatial axes, with axes of size 1 for N and
    C.
    """
    lengths = ctx.sizes(x)[2:]
    return ctx.reshape(iota(ctx, math.prod(lengths)), [1, 1, *lengths])


def _padded(
    ctx: ConversionContext,
    x: ITensor,
    pool: Pool,
    lengths: Sequence[Size],
    value: float | int,
) -> ITensor:
    """The input padded with `value`, wide enough for every window."""
    starts: list[Size] = [0, 0]
    sizes = ctx.sizes(x)[:2]
    for axis, count in enumerate(lengths):
        span = (count - 1) * pool.stride[axis]
        starts.append(-pool.padding[axis])
        sizes.append(span + pool.reach(axis))
    return ctx.slice(
        x, starts, sizes, mode="FILL", fill=ctx.tensor(value, ctx.dtype(x))
    )


def _tap(
    ctx: ConversionContext,
    x: ITensor,
    pool: Pool,
    lengths: Sequence[Size],
    tap: Sequence[int],
) -> ITensor:
    pairs = zip(tap, pool.dilation, strict=True)
    starts = [0, 0, *(index * dilation for index, dilation in pairs)]
    sizes = [*ctx.sizes(x)[:2], *lengths]
    strides = [1, 1, *pool.stride]
    return ctx.slice(x, starts, sizes, strides)
