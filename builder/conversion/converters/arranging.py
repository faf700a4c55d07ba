"""Repeating and rearranging the values of whole axes: repeat, flip, roll, meshgrid, pixel and
channel shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.shape import merged, permuted, reshaped
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.layers import gathered
from builder.conversion.registry import converter
from builder.conversion.values import Tensor
from builder.engine import ITensor
from builder.graph_types import Node


@converter("aten::repeat")
def repeat(ctx: ConversionContext, x: ITensor, repeats: list[Size]) -> ITensor:
    """The tensor repeated `repeats` times along each axis: one slice that wraps around."""
    x = ctx.at_rank(x, len(repeats))
    if all(times == 1 for times in repeats):
        return x
    lengths = ctx.sizes(x)
    sizes = [size * times for size, times in zip(lengths, repeats, strict=True)]
    return ctx.slice(x, [0] * len(lengths), sizes, mode="WRAP")


@converter("aten::repeat_interleave.self_int", dynamic=("output_size",))
def repeat_interleave(
    ctx: ConversionContext, x: ITensor, repeats: Size, dim: int | None
) -> ITensor:
    """Each value of an axis `repeats` times in a row; without dim, of the flat tensor."""
    x, axis = _interleaved_axis(ctx, x, dim)
    size = ctx.size(x, axis)
    if isinstance(size, int) and isinstance(repeats, int):
        return gathered(ctx, x, torch.arange(size).repeat_interleave(repeats), axis)
    sizes = ctx.sizes(x)
    position = axis + 1
    sizes.insert(position, repeats)
    wide = ctx.expand(ctx.unsqueeze(x, [position]), sizes)
    return merged(ctx, wide, axis, position)


def _interleaved_axis(
    ctx: ConversionContext, x: ITensor, dim: int | None
) -> tuple[Any, int]:
    if dim is None:
        return reshaped(ctx, x, [-1]), 0
    return x, ctx.axis(x, dim)


@converter("aten::repeat_interleave.self_Tensor", dynamic=("output_size",))
def repeat_interleave_each(
    ctx: ConversionContext, x: ITensor, repeats: Tensor, dim: int | None
) -> Any:
    """Value i of an axis repeats[i] times in a row."""
    if 1 in tuple(repeats.shape) or ctx.rank(repeats) == 0:
        if isinstance(repeats, torch.Tensor):
            return repeat_interleave(ctx, x, int(repeats), dim)
        return repeat_interleave(
            ctx, x, ctx.scalar(ctx.cast(repeats, torch.int64)), dim
        )
    if not isinstance(repeats, torch.Tensor):
        raise Unconvertible(
            "the network computes the repeats, so the size is known only at run time"
        )
    x, axis = _interleaved_axis(ctx, x, dim)
    return gathered(
        ctx, x, torch.arange(repeats.numel()).repeat_interleave(repeats), axis
    )


def flipped(ctx: ConversionContext, x: ITensor, axes: Sequence[int]) -> ITensor:
    """Reverse the axes: one slice with step -1."""
    if not axes:
        return x
    sizes = ctx.sizes(x)
    starts: list[Size] = [0] * len(sizes)
    strides = [1] * len(sizes)
    for axis in sorted(axes):
        starts[axis] = sizes[axis] - 1
        strides[axis] = -1
    return ctx.slice(x, starts, sizes, strides)


@converter("aten::flip")
def flip(ctx: ConversionContext, x: ITensor, dims: list[int]) -> ITensor:
    """Reverse the order of elements along the axes"""
    return flipped(ctx, x, ctx.axes(x, dims) if dims and ctx.rank(x) else [])


for _name, _axis in (("fliplr", 1), ("flipud", 0)):
    converter(f"aten::{_name}")(lambda ctx, x, axis=_axis: flipped(ctx, x, [axis]))


@converter("aten::roll")
def roll(
    ctx: ConversionContext, node: Node, x: ITensor, shifts: list[Size], dims: list[int]
) -> ITensor:
    """Value i of an axis moves to i + shift, around its end: one slice that wraps. Without dims, on
    the flat tensor.
    """
    if not dims:
        flat = roll(ctx, node, reshaped(ctx, x, [-1]), shifts, [0])
        return reshaped(ctx, flat, ctx.sizes(x))
    sizes = ctx.sizes(x)
    starts: list[Size] = [0] * len(sizes)
    for shift, axis in zip(shifts, (ctx.axis(x, d) for d in dims), strict=True):
        starts[axis] -= shift
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if isinstance(start, int) and isinstance(size, int) and size:
            starts[axis] = start % size
    if all(start == 0 for start in starts):
        return x
    dynamic = any(isinstance(size, DynamicScalar) for size in sizes)
    if dynamic and not ctx.capabilities.takes("SLICE.WRAP.DYNAMIC", x.dtype.name):
        return _rolled(ctx, x, starts)
    return ctx.slice(x, starts, sizes, mode="WRAP")


def _rolled(ctx: ConversionContext, x: ITensor, starts: list[Size]) -> ITensor:
    """Slices of the tensor concatenated with itself, for TensorRT versions that cannot wrap a slice
    of dynamic size.
    """
    sizes = ctx.sizes(x)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if start != 0:
            whole = start // size * size
            first: list[Size] = [0] * len(sizes)
            first[axis] = start - whole
            x = ctx.slice(ctx.concatenate([x, x], axis), first, sizes)
    return x


@converter("aten::rot90")
def rot90(ctx: ConversionContext, x: ITensor, k: int, dims: list[int]) -> ITensor:
    """A quarter turn from the first of the axes toward the second, k times"""
    first, second = (ctx.axis(x, dim) for dim in dims)
    k %= 4
    if k % 2 == 0:
        return flipped(ctx, x, [first, second] if k else [])
    order = list(range(ctx.rank(x)))
    order[first], order[second] = second, first
    return ctx.permute(flipped(ctx, x, [second if k == 1 else first]), order)


@converter("aten::meshgrid", "aten::meshgrid.indexing")
def meshgrid(
    ctx: ConversionContext, tensors: list[ITensor], indexing: str = "ij"
) -> list[ITensor]:
    """Tensor i varies along axis i of every result; with "xy" the first two along axes 1 and 0"""
    axes = list(range(len(tensors)))
    if indexing == "xy" and len(axes) > 1:
        axes[:2] = [1, 0]
    vectors = [
        tensor if ctx.rank(tensor) else ctx.reshape(tensor, [1]) for tensor in tensors
    ]
    lengths = dict(zip(axes, (ctx.size(vector, 0) for vector in vectors), strict=True))
    sizes = [lengths[axis] for axis in range(len(axes))]
    grid = []
    for vector, axis in zip(vectors, axes, strict=True):
        others = [other for other in range(len(axes)) if other != axis]
        grid.append(ctx.expand(ctx.unsqueeze(vector, others), sizes))
    return grid


@converter("aten::cartesian_prod")
def cartesian_prod(ctx: ConversionContext, tensors: list[ITensor]) -> ITensor:
    """[a], [b], ... -> [a b ..., tensors]: one row for each combination of values; a single vector
    is returned unchanged
    """
    if len(tensors) == 1:
        return tensors[0]
    columns = [
        ctx.unsqueeze(reshaped(ctx, g, [-1]), [1]) for g in meshgrid(ctx, tensors)
    ]
    return ctx.concatenate(columns, 1)


@converter("aten::pixel_shuffle")
def pixel_shuffle(ctx: ConversionContext, x: ITensor, upscale_factor: int) -> ITensor:
    """[*, C r^2, H, W] -> [*, C, H r, W r]"""
    r = upscale_factor
    *lead, channels, height, width = ctx.sizes(x)
    n = len(lead)
    depth = channels // r**2
    split = ctx.reshape(x, [*lead, depth, r, r, height, width])
    ordered = ctx.permute(split, [*range(n + 1), n + 3, n + 1, n + 4, n + 2])
    return ctx.reshape(ordered, [*lead, depth, height * r, width * r])


@converter("aten::pixel_unshuffle")
def pixel_unshuffle(
    ctx: ConversionContext, x: ITensor, downscale_factor: int
) -> ITensor:
    """[*, C, H r, W r] -> [*, C r^2, H, W]"""
    r = downscale_factor
    *lead, channels, height, width = ctx.sizes(x)
    n = len(lead)
    rows = height // r
    columns = width // r
    split = ctx.reshape(x, [*lead, channels, rows, r, columns, r])
    ordered = ctx.permute(split, [*range(n + 1), n + 2, n + 4, n + 1, n + 3])
    return ctx.reshape(ordered, [*lead, channels * r**2, rows, columns])


@converter("aten::channel_shuffle")
def channel_shuffle(ctx: ConversionContext, x: ITensor, groups: int) -> ITensor:
    """[N, g c, *] -> [N, c g, *]"""
    sizes = ctx.sizes(x)
    batch, channels, *spatial = sizes
    split = ctx.reshape(x, [batch, groups, channels // groups, *spatial])
    ordered = ctx.permute(split, [0, 2, 1, *range(3, len(sizes) + 1)])
    return ctx.reshape(ordered, sizes)


def _no_strides(ctx: ConversionContext, args: SimpleNamespace) -> str | None:
    """refused: the tensors of a network have no strides"""
    return "as_strided depends on torch's memory layout; the tensors of a network have no strides"


@converter(
    "aten::as_strided",
    dynamic=("size", "stride", "storage_offset"),
    when=_no_strides,
    note=(
        "for a constant it is computed while the network is built; otherwise the node runs in torch"
    ),
)
def as_strided(ctx: ConversionContext, x: ITensor) -> Any:
    """Refused by its capability."""
    return permuted(ctx, x, range(ctx.rank(x)))
