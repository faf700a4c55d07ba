"""Basic indexing: select, slice, narrow."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion import scalars
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, Size, of_lengths
from builder.conversion.facts import is_tensor
from builder.conversion.layers import gathered
from builder.conversion.registry import converter
from builder.engine import ITensor

END = 2**63 - 1
"""TorchScript's value for an omitted end."""


def sliced(
    ctx: ConversionContext,
    x: ITensor,
    axis: int,
    start: Size,
    length: Size,
    step: Size = 1,
) -> ITensor:
    """`length` values of one axis from `start`, `step` apart; x itself for a full slice."""
    if (
        isinstance(start, DynamicScalar)
        and isinstance(length, int)
        and step == 1
        and (ctx.varies(start) or not of_lengths(start))
    ):
        return _window(ctx, x, axis, start, length)
    sizes = ctx.sizes(x)
    if start == 0 and step == 1 and scalars.decided(ctx, "eq", length, sizes[axis]):
        return x
    starts: list[Size] = [0] * len(sizes)
    strides: list[Size] = [1] * len(sizes)
    starts[axis] = start
    strides[axis] = step
    sizes[axis] = length
    return ctx.slice(x, starts, sizes, strides)


def bound(
    ctx: ConversionContext, value: Size | None, size: Size, default: Size
) -> Size:
    """A slice's bound as in torch: None is the default, negative values count from the end, and
    values are clamped to the axis.
    """
    if value is None or (isinstance(value, int) and value >= END):
        return default
    negative = scalars.decided(ctx, "lt", value, 0)
    if negative is not False:
        value = position(ctx, value, size)
    if negative is not True:
        value = ctx.minimum(value, size)
    if negative is not False:
        value = ctx.maximum(value, 0)
    return value


def length_between(ctx: ConversionContext, start: Size, end: Size, step: Size) -> Size:
    """ceil(max(end - start, 0) / step), the number of values of a slice with a positive step."""
    span = ctx.maximum(end - start, 0)
    if step == 1:
        return span  # type: ignore[no-any-return]
    rounded = span + (step - 1)
    return rounded // step  # type: ignore[no-any-return]


@converter("aten::slice.Tensor")
def slice_(
    ctx: ConversionContext,
    x: ITensor,
    dim: int,
    start: Size | None,
    end: Size | None,
    step: Size,
) -> ITensor:
    """self[..., start:end:step, ...] on axis dim"""
    axis, first, last = sliced_range(ctx, x, dim, start, end)
    return sliced(ctx, x, axis, first, length_between(ctx, first, last, step), step)


def sliced_range(
    ctx: ConversionContext, x: ITensor, dim: int, start: Size | None, end: Size | None
) -> tuple[int, Size, Size]:
    """The axis, and the first and last position of a slice of it, both from the front."""
    axis = ctx.axis(x, dim)
    size = ctx.size(x, axis)
    return axis, bound(ctx, start, size, 0), bound(ctx, end, size, size)


def position(ctx: ConversionContext, index: Size, size: Size) -> Size:
    """An index as a nonnegative one; no layer if its sign is known to be nonnegative."""
    negative = scalars.decided(ctx, "lt", index, 0)
    if negative is False:
        return index
    moved = index + size
    if negative:
        return moved
    assert isinstance(index, DynamicScalar)  # the sign of a number is known
    return where_negative(ctx, index, moved)


def where_negative(ctx: ConversionContext, index: DynamicScalar, moved: Size) -> Size:
    """`moved` if a DynamicScalar is negative, else the scalar."""
    below = ctx.elementwise("LESS", index.tensor, ctx.like_scalar(index.tensor, 0))
    chosen = ctx.net.add_select(
        below, scalars.vector(ctx, moved, index.dtype), index.tensor
    ).get_output(0)
    symbol = scalars.unknown(chosen)
    if ctx.varies(index, moved):
        ctx.varying.add(symbol)
    return DynamicScalar(ctx, chosen, symbol, index.dtype)


@converter("aten::select.int")
def select(ctx: ConversionContext, x: ITensor, dim: int, index: Size) -> ITensor:
    """self[..., index, ...] on axis dim, without that axis"""
    axis = ctx.axis(x, dim)
    return select_index(ctx, x, axis, position(ctx, index, ctx.size(x, axis)))


def select_index(ctx: ConversionContext, x: ITensor, axis: int, index: Size) -> ITensor:
    """The values at one index of an axis, without the axis."""
    # a gather, because TensorRT cannot slice with a start that changes within a loop
    if isinstance(index, DynamicScalar):
        return gathered(ctx, x, ctx.reshape(index.tensor, []), axis)
    return ctx.squeeze(sliced(ctx, x, axis, index, 1), [axis])


@converter(
    "aten::narrow",
    "aten::narrow.Tensor",
    constants=("start",),
    dynamic=("start", "length"),
)
def narrow(
    ctx: ConversionContext, x: ITensor, dim: int, start: Any, length: Size
) -> ITensor:
    """`length` values of axis dim from `start` (negative: from the end); the axis is kept."""
    if is_tensor(start):
        start = ctx.scalar(ctx.cast(start, torch.int64))
    elif isinstance(start, torch.Tensor):
        start = int(start)
    axis = ctx.axis(x, dim)
    return sliced(ctx, x, axis, position(ctx, start, ctx.size(x, axis)), length)


def _window(
    ctx: ConversionContext, x: ITensor, axis: int, first: DynamicScalar, length: int
) -> ITensor:
    """`length` values of an axis from a start that depends on data or a loop: a gather, because a
    slice's start must follow from shapes.
    """
    positions = ctx.elementwise(
        "SUM", *ctx.operands(torch.arange(length), ctx.tensor(first), dtype=first.dtype)
    )
    return gathered(ctx, x, ctx.set_sizes(positions, [length]), axis)


def static_length(ctx: ConversionContext, x: ITensor, axis: int, subject: str) -> int:
    """The axis's length, which must be static because it is the number of tensors."""
    length = ctx.size(x, axis)
    if isinstance(length, DynamicScalar):
        raise Unconvertible(
            f"{subject} of the dynamic axis {axis} ({length.expr}): the number of tensors would"
            " depend on its size",
            f"give {length.expr} one size in the manifest: min = opt = max",
        )
    return length
