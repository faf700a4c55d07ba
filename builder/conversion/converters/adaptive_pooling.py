"""Adaptive pooling: output i of O covers floor(i I / O) up to ceil((i + 1) I / O)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion import dtypes
from builder.conversion.arguments import dynamic_value
from builder.conversion.context import ConversionContext
from builder.conversion.converters.pooling import floats
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.layers import (
    NAN_UNDEFINED,
    choose,
    combine,
    gathered,
    less,
    matmul_along,
    reduce,
)
from builder.conversion.pools import Pool, pooled
from builder.conversion.registry import converter, for_each
from builder.conversion.spatial import as_image, filled, iota
from builder.conversion.values import Tensor
from builder.engine import ITensor, trt
from builder.graph_types import Node

NAN_SPREADS = "NaN or an infinity reaches all parts of unequal length"
ADAPTIVE_AVERAGE = {
    "adaptive_avg_pool1d": 1,
    "adaptive_avg_pool2d": 2,
    "adaptive_avg_pool3d": 3,
    "_adaptive_avg_pool2d": 2,
    "_adaptive_avg_pool3d": 3,
}


@for_each(*ADAPTIVE_AVERAGE.items())
def _register_adaptive_average(name: str, axes: int) -> None:
    @converter(f"aten::{name}", when=floats, note=NAN_SPREADS)
    def adaptive_average(
        ctx: ConversionContext, x: ITensor, output_size: Size | list[Size]
    ) -> ITensor:
        """The mean of each of output_size parts of an axis"""
        return _adaptive(ctx, x, axes, filled(output_size, axes), "AVERAGE")


@for_each(1, 2, 3)
def _register_adaptive_maximum(axes: int) -> None:
    @converter(f"aten::adaptive_max_pool{axes}d", note=NAN_UNDEFINED)
    def adaptive_maximum(
        ctx: ConversionContext, node: Node, x: ITensor, output_size: Size | list[Size]
    ) -> Any:
        """The maximum of each part, and its position if it is used"""
        sizes = filled(output_size, axes)
        if not node.outputsAt(1).uses():
            return _adaptive(ctx, x, axes, sizes, "MAX"), None
        return _adaptive_with_indices(ctx, x, axes, sizes)


def _adaptive(
    ctx: ConversionContext, x: ITensor, axes: int, sizes: Sequence[Size], kind: str
) -> ITensor:
    """Axes that become 1 are reduced; axes with parts of equal length are pooled; the others are
    computed one axis at a time.
    """
    first = ctx.rank(x) - axes
    new_sizes = {
        axis: size
        for axis, size in enumerate(sizes, first)
        if not _keeps(ctx, x, axis, size)
    }
    axes_of_size_one = [
        axis for axis, size in new_sizes.items() if isinstance(size, int) and size == 1
    ]
    x = reduce(
        ctx, "AVG" if kind == "AVERAGE" else "MAX", x, axes_of_size_one, keepdim=True
    )
    even = {
        axis: size
        for axis, size in new_sizes.items()
        if axis not in axes_of_size_one and _is_even(x, axis, size)
    }
    if even:
        x = _equal_windows(ctx, x, axes, even, kind)
    pool_parts = _average_parts if kind == "AVERAGE" else _maximum_parts
    for axis, size in new_sizes.items():
        if axis not in axes_of_size_one and axis not in even:
            x = pool_parts(ctx, x, axis, size)
    return x


def _keeps(ctx: ConversionContext, x: ITensor, axis: int, size: Size) -> bool:
    length = ctx.size(x, axis)
    if isinstance(length, int) and isinstance(size, int):
        return length == size
    if isinstance(length, int) or isinstance(size, int):
        return False
    return bool(length.expr == size.expr)


def _is_even(x: ITensor, axis: int, size: Size) -> bool:
    length = x.shape[axis]
    return isinstance(size, int) and length > 0 and length % size == 0


def _equal_windows(
    ctx: ConversionContext, x: ITensor, axes: int, even: Any, kind: str
) -> Any:
    first = ctx.rank(x) - axes
    window = [1] * axes
    for axis, size in even.items():
        window[axis - first] = x.shape[axis] // size
    image, undo = as_image(ctx, x, axes)
    return undo(pooled(ctx, image, kind, Pool.of(axes, window, [], 0, 1)))


def _bounds(ctx: ConversionContext, length: Size, size: Size) -> tuple[Any, Any]:
    """The start and end of each part: 1-d, static if both sizes are."""
    if isinstance(length, int) and isinstance(size, int):
        part = torch.arange(size)
        return part * length // size, -((-(part + 1) * length) // size)
    index = iota(ctx, size)
    begun = combine(ctx, "PROD", index, length)
    starts = combine(ctx, "FLOOR_DIV", begun, size)
    ended = combine(ctx, "PROD", combine(ctx, "SUM", index, 1), length)
    rounded_up = combine(ctx, "SUM", ended, size - 1)
    ends = combine(ctx, "FLOOR_DIV", rounded_up, size)
    return starts, ends


def _member(ctx: ConversionContext, length: Size, size: Size) -> Any:
    """[size, length], true if element j belongs to part i; a torch.Tensor if static."""
    starts, ends = _bounds(ctx, length, size)
    if isinstance(starts, torch.Tensor) and isinstance(length, int):
        static = torch.arange(length)
        return (static >= starts[:, None]) & (static < ends[:, None])
    j = ctx.unsqueeze(iota(ctx, length), [0])
    starts = ctx.unsqueeze(starts, [1])
    ends = ctx.unsqueeze(ends, [1])
    return ctx.elementwise(
        "AND", less(ctx, combine(ctx, "SUB", starts, 1), j), less(ctx, j, ends)
    )


def _average_parts(
    ctx: ConversionContext, x: ITensor, axis: int, size: Size
) -> ITensor:
    """A matrix product with the rows 1 / count over each part."""
    member = _member(ctx, ctx.size(x, axis), size)
    if isinstance(member, torch.Tensor):
        counts = member.double()
        matrix: Tensor = (counts / counts.sum(1, keepdim=True)).to(ctx.dtype(x))
    else:
        ones = ctx.cast(member, ctx.dtype(x))
        matrix = combine(ctx, "DIV", ones, reduce(ctx, "SUM", ones, [1], keepdim=True))
    return matmul_along(ctx, matrix, x, axis)


def _maximum_parts(
    ctx: ConversionContext, x: ITensor, axis: int, size: Size
) -> ITensor:
    """Static: each part gathered to the longest length, with its last element repeated. Dynamic:
    other elements masked by -inf.
    """
    length = ctx.size(x, axis)
    if isinstance(length, int) and isinstance(size, int):
        index = _positions(*_bounds(ctx, length, size))
        parts = gathered(ctx, x, index, axis)
        return reduce(ctx, "MAX", parts, [axis + 1])
    member = _member(ctx, length, size)
    trailing = ctx.rank(x) - axis - 1
    sizes = [1] * axis + [size, length] + [1] * trailing
    masked = choose(
        ctx,
        ctx.reshape(member, sizes),
        ctx.unsqueeze(x, [axis]),
        dtypes.reduction_identity(ctx.dtype(x), "MAX"),
        ctx.dtype(x),
    )
    lengths = ctx.sizes(x)
    ctx.set_sizes(masked, [*lengths[:axis], size, *lengths[axis:]])
    return reduce(ctx, "MAX", masked, [axis + 1])


def _positions(starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """[parts, longest]: the positions of each part's elements; shorter parts repeat their last."""
    longest = int((ends - starts).max())
    positions = starts[:, None] + torch.arange(longest)
    lasts = ends[:, None] - 1
    return torch.minimum(positions, lasts)


def _adaptive_with_indices(
    ctx: ConversionContext, x: ITensor, axes: int, sizes: Sequence[Size]
) -> Any:
    """Parts of one static length are windows; the index is that of the windowed maximum."""
    first = ctx.rank(x) - axes
    lengths = [ctx.size(x, axis) for axis in range(first, ctx.rank(x))]
    for axis, (length, size) in enumerate(zip(lengths, sizes, strict=True), first):
        if isinstance(length, DynamicScalar) and not _is_even(x, axis, size):
            raise dynamic_value(
                f"axis {axis}, whose positions adaptive_max_pool{axes}d returns,",
                length,
            )
    parts = [
        _bounds(ctx, length, size) for length, size in zip(lengths, sizes, strict=True)
    ]
    return _gathered_maximum(ctx, x, first, parts)


def _gathered_maximum(
    ctx: ConversionContext,
    x: ITensor,
    first: int,
    parts: Sequence[tuple[torch.Tensor, ...]],
) -> Any:
    """Every part's elements, gathered by their flat positions [outputs, longest]; TopK returns
    value and index.
    """
    lengths = [int(length) for length in x.shape[first:]]
    flat = torch.zeros(1, 1, dtype=torch.int64)
    for length, (starts, ends) in zip(lengths, parts, strict=True):
        index = _positions(starts, ends)
        flat = flat[:, None, :, None] * length + index[None, :, None, :]
        flat = flat.flatten(0, 1).flatten(1, 2)
    leading = ctx.sizes(x)[:first]
    rows = ctx.reshape(x, [*leading, math.prod(lengths)])
    candidates = gathered(ctx, rows, flat, first)
    layer = ctx.net.add_topk(candidates, trt.TopKOperation.MAX, 1, 1 << (first + 1))
    values = layer.get_output(0)
    position = ctx.cast(layer.get_output(1), torch.int64)
    base = (torch.arange(flat.shape[0]) * flat.shape[1])[:, None]
    at = combine(ctx, "SUM", position, base)
    positions = gathered(ctx, ctx.constant(flat.flatten()), at, 0)
    sizes = [*leading, *(len(starts) for starts, _ in parts)]
    return ctx.reshape(values, sizes), ctx.cast(
        ctx.reshape(positions, sizes), torch.int64
    )
