"""Indexing by tensors: embedding, gather, index and related operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion import nonzero
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.select import select_index
from builder.conversion.converters.shape import broadcast_sizes, has_sizes
from builder.conversion.dynamic import Size
from builder.conversion.layers import as_index, gathered
from builder.conversion.registry import converter
from builder.conversion.values import Tensor
from builder.engine import ITensor, trt
from builder.graph_types import Node

Static = torch.Tensor


def from_the_front(ctx: ConversionContext, index: Any, size: Size) -> Any:
    """An index with negative values converted to positive ones."""
    if isinstance(index, Static):
        if not index.numel() or int(index.min()) >= 0:
            return index
        if isinstance(size, int):
            return torch.where(index < 0, index + size, index)
    index = as_index(ctx, index)
    length = ctx.at_rank(ctx.tensor(size, ctx.dtype(index)), ctx.rank(index))
    below = ctx.elementwise("LESS", index, ctx.like_scalar(index, 0))
    moved = ctx.elementwise("SUM", index, length)
    return ctx.copy_sizes(index, ctx.net.add_select(below, moved, index).get_output(0))


@converter("aten::embedding")
def embedding(ctx: ConversionContext, weight: ITensor, indices: Tensor) -> ITensor:
    """The rows of weight at indices; padding_idx only affects gradients."""
    return gathered(ctx, weight, indices, 0)


@converter("aten::index_select")
def index_select(
    ctx: ConversionContext, x: ITensor, dim: int, index: Tensor
) -> ITensor:
    """The values at a vector of indices along one axis; a 0-d tensor has only itself."""
    if ctx.rank(x) == 0:
        return x
    if not ctx.rank(index):
        index = ctx.reshape(as_index(ctx, index), [1])
    return gathered(ctx, x, index, ctx.axis(x, dim))


@converter("aten::take")
def take(ctx: ConversionContext, x: ITensor, index: Tensor) -> ITensor:
    """The values at flat (row-major) indices, in the shape of index."""
    flat = ctx.reshape(x, [-1])
    return gathered(ctx, flat, from_the_front(ctx, index, ctx.size(flat, 0)), 0)


@converter("aten::gather")
def gather(
    ctx: ConversionContext, node: Node, x: ITensor, dim: int, index: Tensor
) -> ITensor:
    """out[i][j] = self[index[i][j]][j] for dim 0"""
    if 0 in tuple(index.shape):  # torch then does not check the ranks
        if -1 not in tuple(index.shape):
            return ctx.tensor(torch.empty(tuple(index.shape), dtype=ctx.dtype(x)))
        if ctx.rank(x) != ctx.rank(index):
            raise Unconvertible(
                "an empty index with a dynamic axis must have the rank of the tensor"
            )
    if ctx.rank(x) == 0 or ctx.rank(index) == 0:
        return _gather_zero_dim(ctx, node, x, dim, index)
    return element_gathered(ctx, x, index, ctx.axis(x, dim))


def _gather_zero_dim(
    ctx: ConversionContext, node: Node, x: ITensor, dim: int, index: Tensor
) -> ITensor:
    """Gather with a 0-d tensor as a vector of one element."""
    vector = gather(
        ctx, node, _one_axis(ctx, x), dim, _one_axis(ctx, as_index(ctx, index))
    )
    return vector if ctx.rank(index) else ctx.reshape(vector, [])


def _one_axis(ctx: ConversionContext, x: ITensor) -> ITensor:
    if ctx.rank(x):
        return x
    return ctx.reshape(x, [1])


def element_gathered(
    ctx: ConversionContext, x: ITensor, index: Tensor, axis: int
) -> ITensor:
    """One IGatherLayer in ELEMENT mode. The data is sliced to the index's sizes on the other axes,
    as in torch.
    """
    index = as_index(ctx, index)
    lengths = ctx.sizes(x)
    sizes = ctx.sizes(index)
    sizes[axis] = lengths[axis]
    x = slice_to(ctx, x, sizes)
    layer = ctx.net.add_gather_v2(x, index, trt.GatherMode.ELEMENT)
    layer.axis = axis
    result = layer.get_output(0)
    ctx.remember_dtype(result, ctx.dtype(x))
    return ctx.copy_sizes(index, result)


def slice_to(ctx: ConversionContext, x: ITensor, sizes: Sequence[Size]) -> ITensor:
    """x sliced to `sizes` from the start of every axis; x itself if the sizes are equal."""
    if has_sizes(ctx, x, sizes):
        return x
    return ctx.slice(x, [0] * len(sizes), list(sizes))


@converter("aten::take_along_dim")
def take_along_dim(
    ctx: ConversionContext, x: ITensor, indices: Tensor, dim: int | None
) -> Any:
    """gather with broadcasting on the other axes and negative indices; on the flat tensor without
    dim.
    """
    if dim is None:
        return take(ctx, x, ctx.reshape(as_index(ctx, indices), [-1]))
    axis = ctx.axis(x, dim)
    index = as_index(ctx, from_the_front(ctx, indices, ctx.size(x, axis)))
    lengths = ctx.sizes(x)
    requested = ctx.sizes(index)
    if lengths[axis] == requested[axis]:
        common = broadcast_sizes(ctx, [x, index])
    else:
        common = _other_axes(ctx, lengths, requested, axis)
    before, after = common[:axis], common[axis + 1 :]
    x = ctx.expand(x, [*before, lengths[axis], *after])
    index = ctx.expand(index, [*before, requested[axis], *after])
    return element_gathered(ctx, x, index, axis)


def _other_axes(
    ctx: ConversionContext, lengths: list[Size], requested: list[Size], axis: int
) -> list[Size]:
    """The broadcast sizes of all axes except one."""
    result: list[Size] = []
    for i, (a, b) in enumerate(zip(lengths, requested, strict=True)):
        if i == axis or b == 1:
            result.append(a)
        elif a == 1 or isinstance(b, int):
            result.append(b)
        elif isinstance(a, int):
            result.append(a)
        else:
            result.append(ctx.maximum(a, b))
    return result


@converter("aten::index.Tensor")
def index_tensor(
    ctx: ConversionContext, x: ITensor, indices: Sequence[Tensor | None]
) -> ITensor:
    """self[indices]: integer tensors broadcast together, None keeps an axis, and a mask selects its
    nonzero positions.
    """
    indexers = expand_masks(ctx, indices)
    axes = [axis for axis, index in enumerate(indexers) if index is not None]
    if len(axes) == 1:
        axis = axes[0]
        return gathered(
            ctx, x, from_the_front(ctx, indexers[axis], ctx.size(x, axis)), axis
        )
    return _gather_several(ctx, x, indexers, axes)


converter("aten::index.Tensor_hacked_twin")(index_tensor)


def expand_masks(ctx: ConversionContext, indices: Sequence[Tensor | None]) -> list[Any]:
    """The indices with each mask (bool or uint8) replaced by its nonzero positions, one index for
    each axis.
    """
    result: list[Any] = []
    for index in indices:
        if index is None or ctx.dtype(index) not in (torch.bool, torch.uint8):
            result.append(index)
        elif isinstance(index, Static):
            result += list(index.nonzero().unbind(1))
        else:
            result += _computed_positions(ctx, index)
    return result


def _computed_positions(ctx: ConversionContext, mask: ITensor) -> list[ITensor]:
    reason = nonzero.data_dependent(ctx)
    if reason:
        raise Unconvertible(
            f"a mask that the network computes is used as an index: {reason}",
            "use torch.where or masked_fill, which keep the shape",
        )
    indexers = nonzero.positions(ctx, mask)
    return [select_index(ctx, indexers, 1, axis) for axis in range(ctx.rank(mask))]


def _gather_several(
    ctx: ConversionContext, x: ITensor, indexers: list[Any], axes: list[int]
) -> ITensor:
    """Merge the indexed axes, and gather at index[0] * size[1] + index[1]."""
    # torch puts the result first if they are not adjacent
    if axes != list(range(axes[0], axes[-1] + 1)):
        others = [axis for axis in range(ctx.rank(x)) if axis not in axes]
        x = ctx.permute(x, [*axes, *others])
        indexers = [indexers[axis] for axis in axes]
        axes = list(range(len(axes)))
    sizes = ctx.sizes(x)
    flat = linear_index(
        ctx, [indexers[axis] for axis in axes], [sizes[axis] for axis in axes]
    )
    first = axes[0]
    last = axes[-1]
    volume = math.prod(sizes[axis] for axis in axes)
    merged = ctx.reshape(x, [*sizes[:first], volume, *sizes[last + 1 :]])
    return gathered(ctx, merged, flat, first)


def linear_index(
    ctx: ConversionContext, indexers: Sequence[Tensor], sizes: Sequence[Size]
) -> Any:
    """Several indices, one for each axis, as one index into the merged axes; static if all are."""
    result: Any = None
    for position, size in zip(indexers, sizes, strict=True):
        position = from_the_front(ctx, position, size)
        if result is not None:
            position = _plus(ctx, _times(ctx, result, size), position)
        result = position
    return result


def _times(ctx: ConversionContext, index: Any, size: Size) -> Any:
    if isinstance(index, Static) and isinstance(size, int):
        return index.to(torch.int64) * size
    index = ctx.tensor(index, torch.int64)
    return ctx.copy_sizes(
        index, ctx.elementwise("PROD", *ctx.operands(index, size, dtype=torch.int64))
    )


def _plus(ctx: ConversionContext, a: Any, b: Any) -> Any:
    if isinstance(a, Static) and isinstance(b, Static):
        return a + b
    result = ctx.elementwise("SUM", *ctx.operands(a, b, dtype=torch.int64))
    if any(length < 0 for length in result.shape):
        return ctx.set_sizes(result, broadcast_sizes(ctx, [a, b]))
    return result
