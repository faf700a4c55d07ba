"""x[indices] = values, masked writes, and writes into views (slice_scatter, diagonal_scatter)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion import scalars
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.accumulating import accumulated
from builder.conversion.converters.cumulative import running_sum
from builder.conversion.converters.diagonals import diagonal_span, matrix_last
from builder.conversion.converters.indexing import expand_masks, linear_index
from builder.conversion.converters.scattering import along_axis, in_steps, spliced
from builder.conversion.converters.select import length_between, sliced_range
from builder.conversion.converters.shape import broadcast_sizes, permuted
from builder.conversion.dynamic import Size
from builder.conversion.layers import as_index, choose, comparison, copy_facts, gathered
from builder.conversion.registry import converter
from builder.conversion.spatial import iota
from builder.conversion.values import Tensor
from builder.engine import ITensor, trt


@converter("aten::index_put", "aten::index_put.hacked_twin", "aten::_unsafe_index_put")
def index_put(
    ctx: ConversionContext,
    x: ITensor,
    indices: Sequence[Tensor | None],
    values: ITensor,
    accumulate: bool,
) -> ITensor:
    """self[indices] = values, or += with accumulate; a computed mask becomes a selection, not an
    index.
    """
    masks = [
        i
        for i in indices
        if i is not None
        and not isinstance(i, torch.Tensor)
        and ctx.dtype(i) == torch.bool
    ]
    if masks:
        return _put_masked(ctx, x, indices, values, accumulate)
    positions = expand_masks(ctx, indices)
    axes = [axis for axis, index in enumerate(positions) if index is not None]
    return _put_at(ctx, x, positions, axes, values, accumulate)


def _put_masked(
    ctx: ConversionContext,
    x: ITensor,
    indices: Sequence[Any],
    values: ITensor,
    accumulate: bool,
) -> ITensor:
    """Write the values that a mask selects, in order. One value (or row) for all of them is a plain
    selection.
    """
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if len(axes) > 1 or accumulate:
        raise Unconvertible(
            "index_put with a computed mask supports neither other indices nor accumulate=True"
        )
    first = axes[0]
    mask = indices[first]
    rank = ctx.rank(mask)
    trailing = ctx.rank(x) - first - rank
    wide = ctx.unsqueeze(mask, list(range(rank, rank + trailing)))
    leading = ctx.rank(values) - trailing
    if leading > 0 and values.shape[leading - 1] != 1:
        if first:
            raise Unconvertible(
                "index_put with a computed mask after other axes supports only one value for all "
                "positions"
            )
        values = _nth_selected(ctx, mask, values, trailing)
    elif leading > 0 and first == 0:
        values = ctx.reshape(values, ctx.sizes(values)[leading:])
    return ctx.copy_sizes(x, choose(ctx, wide, values, x, ctx.dtype(x)))


def _nth_selected(
    ctx: ConversionContext, mask: ITensor, values: ITensor, trailing: int
) -> ITensor:
    """values [selected, *behind] expanded to the mask's axes: position p gets the row (number
    selected before p).
    """
    row = ctx.reshape(count_before(ctx, mask), ctx.sizes(mask))
    return gathered(ctx, ctx.at_rank(values, trailing + 1), row, 0)


def count_before(ctx: ConversionContext, mask: ITensor) -> ITensor:
    """[elements] int64: for each element of the flat mask, the number of true elements before
    it.
    """
    flat = ctx.cast(ctx.reshape(mask, [-1]), torch.int64)
    sums = running_sum(ctx, flat, 0)
    return ctx.copy_sizes(flat, ctx.elementwise("SUB", sums, flat))


def _put_at(
    ctx: ConversionContext,
    x: ITensor,
    positions: list[Any],
    axes: list[int],
    values: ITensor,
    accumulate: bool,
) -> ITensor:
    """Move the indexed axes to the front and merge them, scatter rows by one IScatterLayer (ND),
    and restore the order.
    """
    others = [axis for axis in range(ctx.rank(x)) if axis not in axes]
    order = [*axes, *others]
    front = permuted(ctx, x, order)
    sizes = ctx.sizes(front)
    several = len(axes) > 1
    rows = front
    if several:
        rows = ctx.reshape(front, [math.prod(sizes[: len(axes)]), *sizes[len(axes) :]])
    index = as_index(
        ctx, linear_index(ctx, [positions[axis] for axis in axes], sizes[: len(axes)])
    )
    values = _values_in_front(ctx, x, values, index, axes, others)
    written = _rows_written(ctx, rows, index, values, accumulate)
    if several:
        written = ctx.reshape(written, sizes)
    return permuted(ctx, written, [order.index(axis) for axis in range(len(order))])


def _values_in_front(
    ctx: ConversionContext,
    x: ITensor,
    values: ITensor,
    index: ITensor,
    axes: list[int],
    others: list[int],
) -> ITensor:
    """values broadcast to the shape of x[indices], with the index's axes first."""
    picked = ctx.sizes(index)
    other_sizes = [ctx.size(x, axis) for axis in others]
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    before = 0
    if adjacent:
        before = sum(axis < axes[0] for axis in others)
    sizes = [*other_sizes[:before], *picked, *other_sizes[before:]]
    values = ctx.expand(ctx.tensor(values, ctx.dtype(x)), sizes)
    end_of_picked = before + len(picked)
    order = [
        *range(before, end_of_picked),
        *range(before),
        *range(end_of_picked, len(sizes)),
    ]
    return permuted(ctx, values, order)


def _rows_written(
    ctx: ConversionContext,
    rows: ITensor,
    index: ITensor,
    values: ITensor,
    accumulate: bool,
) -> ITensor:
    if accumulate:
        flat = ctx.reshape(index, [-1])
        row_sizes = ctx.sizes(rows)[1:]
        flat_values = ctx.reshape(values, [ctx.size(flat, 0), *row_sizes])
        column = ctx.reshape(flat, [ctx.size(flat, 0), *([1] * len(row_sizes))])
        return accumulated(ctx, rows, 0, column, flat_values, "sum")
    positions = ctx.unsqueeze(index, [ctx.rank(index)])
    result = ctx.net.add_scatter(
        rows, positions, values, trt.ScatterMode.ND
    ).get_output(0)
    return copy_facts(ctx, rows, result)


@converter("aten::masked_scatter")
def masked_scatter(
    ctx: ConversionContext, x: ITensor, mask: ITensor, source: ITensor
) -> ITensor:
    """self with the true positions of mask filled by the values of source, in order"""
    sizes = broadcast_sizes(ctx, [x, mask])
    whole = ctx.expand(x, sizes)
    mask = ctx.expand(mask, sizes)
    row = count_before(ctx, mask)
    flat = ctx.reshape(source, [-1])
    last = ctx.size(flat, 0) - 1
    # behind the last true position
    row = ctx.elementwise("MIN", *ctx.operands(row, last, dtype=torch.int64))
    values = ctx.reshape(gathered(ctx, flat, row, 0), sizes)
    return ctx.set_sizes(choose(ctx, mask, values, whole, ctx.dtype(x)), sizes)


@converter("aten::slice_scatter")
def slice_scatter(
    ctx: ConversionContext,
    x: ITensor,
    src: ITensor,
    dim: int,
    start: Size | None,
    end: Size | None,
    step: Size,
) -> ITensor:
    """self with self[start:end:step] of an axis replaced by src"""
    axis, first, last = sliced_range(ctx, x, dim, start, end)
    if step != 1:
        return in_steps(ctx, x, src, axis, first, step)
    length = length_between(ctx, first, last, 1)
    if scalars.decided(ctx, "eq", length, 0):
        return x
    if length == 1 and ctx.varies(first):
        return _one_position_written(ctx, x, src, axis, first)
    return spliced(ctx, x, src, axis, first, first + length)


def _one_position_written(
    ctx: ConversionContext, x: ITensor, src: ITensor, axis: int, position: Size
) -> ITensor:
    """x with src, of size 1 along the axis, at a position that changes between iterations of a
    loop. TensorRT cannot slice there, so elements are selected.
    """
    numbers = iota(ctx, ctx.size(x, axis))
    is_position = comparison(ctx, "eq", numbers, position)
    column = along_axis(ctx, is_position, axis, ctx.rank(x))
    chosen = choose(ctx, column, src, x, ctx.dtype(x))
    return ctx.copy_sizes(x, chosen)


@converter("aten::diagonal_scatter")
def diagonal_scatter(
    ctx: ConversionContext, x: ITensor, src: ITensor, offset: int, dim1: int, dim2: int
) -> ITensor:
    """self with a diagonal replaced by src"""
    matrix, back = matrix_last(ctx, x, dim1, dim2)
    *lead, height, width = ctx.sizes(matrix)
    start, length = diagonal_span(ctx, height, width, offset)
    if scalars.decided(ctx, "eq", length, 0):
        return x
    flat = ctx.reshape(matrix, [*lead, height * width])
    written = in_steps(ctx, flat, src, len(lead), start, width + 1)
    return permuted(ctx, ctx.reshape(written, [*lead, height, width]), back)
