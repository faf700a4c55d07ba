"""Writes by index: scatter, index_copy and related operators. The last write to an index counts."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.converters.indexing import from_the_front, slice_to
from builder.conversion.converters.select import sliced
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.evaluators.creation import counted, filled, indices
from builder.conversion.layers import as_index, choose, copy_facts, reduce
from builder.conversion.registry import converter
from builder.conversion.values import Operand, Scalar, Tensor
from builder.engine import ITensor, trt


def scattered(
    ctx: ConversionContext, x: ITensor, index: Tensor, updates: ITensor, axis: int
) -> ITensor:
    """x with updates[i] written to index[i] along an axis: one IScatterLayer."""
    layer = ctx.net.add_scatter(
        x,
        as_index(ctx, index),
        ctx.tensor(updates, ctx.dtype(x)),
        trt.ScatterMode.ELEMENT,
    )
    layer.axis = axis
    return copy_facts(ctx, x, layer.get_output(0))


def ranked(ctx: ConversionContext, *values: Tensor) -> list[Any]:
    """0-d tensors as vectors of one element."""
    return [
        value if ctx.rank(value) else ctx.reshape(ctx.tensor(value), [1])
        for value in values
    ]


def unranked(ctx: ConversionContext, x: ITensor, result: ITensor) -> ITensor:
    """The result of `ranked` operands, 0-d if x is 0-d."""
    if ctx.rank(x):
        return result
    return ctx.reshape(result, [])


@converter("aten::scatter.src")
def scatter(
    ctx: ConversionContext, x: ITensor, dim: int, index: Tensor, src: ITensor
) -> ITensor:
    """self[index[i][j]][j] = src[i][j] for dim 0"""
    whole, index, src = ranked(ctx, x, index, src)
    result = scattered(
        ctx, whole, index, slice_to(ctx, src, ctx.sizes(index)), ctx.axis(whole, dim)
    )
    return unranked(ctx, x, result)


@converter("aten::scatter.value")
def scatter_value(
    ctx: ConversionContext, x: ITensor, dim: int, index: Tensor, value: Scalar
) -> Any:
    """scatter of one value"""
    updates = ctx.tensor(filled(ctx, ctx.sizes(index), value, ctx.dtype(x)))
    return scatter(ctx, x, dim, index, updates)


def matches(
    ctx: ConversionContext, positions: Size, index: Tensor, axis: int, rank: int
) -> ITensor:
    """Whether index i is position p: [.., p, i, ..] bools."""
    index = ctx.unsqueeze(as_index(ctx, index), [axis])
    numbers = ctx.cast(indices(ctx, positions), ctx.dtype(index))
    view: list[Size] = [1] * (rank + 1)
    view[axis] = positions
    column = ctx.reshape(numbers, view)
    mask = ctx.elementwise("EQUAL", column, index)
    sizes = ctx.sizes(index)
    sizes[axis] = positions
    return ctx.set_sizes(mask, sizes)


def along_axis(ctx: ConversionContext, index: Tensor, axis: int, rank: int) -> Any:
    """A vector of positions as a tensor of `rank` axes, all of size 1 except one."""
    shape: list[Size] = [1] * rank
    shape[axis] = ctx.size(index, 0) if ctx.rank(index) else 1
    if isinstance(index, torch.Tensor):
        return index.reshape([int(size) for size in shape])  # type: ignore[arg-type]
    return ctx.reshape(index, shape)


@converter("aten::index_copy")
def index_copy(
    ctx: ConversionContext, x: ITensor, dim: int, index: Tensor, source: ITensor
) -> ITensor:
    """self[index[i]] = source[i] along dim"""
    whole, source = ranked(ctx, x, source)
    axis = ctx.axis(whole, dim)
    positions = ctx.expand(
        as_index(ctx, along_axis(ctx, index, axis, ctx.rank(whole))), ctx.sizes(source)
    )
    result = scattered(ctx, whole, positions, source, axis)
    return unranked(ctx, x, result)


@converter("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(
    ctx: ConversionContext, x: ITensor, dim: int, index: Tensor, value: Operand
) -> ITensor:
    """self[index[i]] = value along dim: a selection by a mask, which is constant if the index
    is.
    """
    if ctx.rank(x) == 0:
        return ctx.tensor(value, ctx.dtype(x))
    axis = ctx.axis(x, dim)
    rank = ctx.rank(x)
    size = ctx.size(x, axis)
    if not ctx.rank(index):
        (index,) = ranked(ctx, index)
    index = from_the_front(ctx, index, size)
    shape: list[Size] = [1] * rank
    shape[axis] = size
    if isinstance(index, torch.Tensor) and isinstance(size, int):
        mask: Any = torch.zeros(size, dtype=torch.bool).index_fill(0, index, value=True)
        mask = mask.reshape(shape)
    else:
        is_filled = ctx.cast(matches(ctx, size, index, 0, 1), torch.int32)
        mask = ctx.cast(reduce(ctx, "MAX", is_filled, [1]), torch.bool)
        mask = ctx.reshape(mask, shape)
    return ctx.copy_sizes(x, choose(ctx, mask, value, x, ctx.dtype(x)))


def spliced(
    ctx: ConversionContext, x: ITensor, src: ITensor, axis: int, start: Size, end: Size
) -> ITensor:
    """x with [start:end] of an axis replaced by src."""
    length_after = ctx.size(x, axis) - end
    before = []
    if start != 0:
        before = [sliced(ctx, x, axis, 0, start)]
    after = []
    if length_after != 0:
        after = [sliced(ctx, x, axis, end, length_after)]
    parts = [*before, ctx.tensor(src, ctx.dtype(x)), *after]
    if len(parts) == 1:
        return parts[0]
    return ctx.copy_sizes(x, ctx.concatenate(parts, axis))


def in_steps(
    ctx: ConversionContext, x: ITensor, src: ITensor, axis: int, start: Size, step: Size
) -> ITensor:
    """x with src written to start, start + step, ... of an axis."""
    count = ctx.size(src, axis)
    if not any(isinstance(value, DynamicScalar) for value in (start, step, count)):
        positions: Any = torch.arange(count) * step + start  # type: ignore[arg-type,operator]
    else:
        positions = counted(ctx, start, step, count, torch.int64)
    column = as_index(ctx, along_axis(ctx, positions, axis, ctx.rank(x)))
    index = ctx.expand(column, ctx.sizes(src))
    return scattered(ctx, x, index, src, axis)
