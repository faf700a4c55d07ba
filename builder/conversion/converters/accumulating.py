"""Scatter with reduction: scatter_add, index_reduce and related operators.

TensorRT's IScatterLayer overwrites. For a reduction (sum, product, maximum) of values with one
index, every output position is compared with every index, and the reduction runs over the indices
(`accumulated`).
"""

from __future__ import annotations

import functools
from math import isfinite
from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion import dtypes
from builder.conversion.context import ConversionContext
from builder.conversion.converters.indexing import from_the_front, slice_to
from builder.conversion.converters.padding import padded
from builder.conversion.converters.scattering import (
    along_axis,
    matches,
    ranked,
    scattered,
    unranked,
)
from builder.conversion.dynamic import Size, bounds
from builder.conversion.evaluators.creation import filled
from builder.conversion.layers import (
    NAN_UNDEFINED,
    as_index,
    choose,
    combine,
    computed_in,
    copy_facts,
    less,
    reduce,
)
from builder.conversion.registry import converter
from builder.conversion.values import Scalar, Tensor
from builder.engine import ITensor

REDUCTIONS = {
    "sum": "SUM",
    "add": "SUM",
    "prod": "PROD",
    "multiply": "PROD",
    "amax": "MAX",
    "amin": "MIN",
    "mean": "SUM",
}
"""torch's name -> ReduceOperation, also the name of the ElementWiseOperation that combines with the
previous value.
"""


MOST_COMPARISONS = 2**28
"""Maximum number of comparisons (positions times indices): 256 million bools of memory.
"""


def accumulated(
    ctx: ConversionContext,
    x: ITensor,
    axis: int,
    index: Tensor,
    src: ITensor,
    reduction: str,
    include_self: bool = True,
) -> ITensor:
    """x reduced with the values of src that have each index of an axis; index broadcasts against
    src.

    The output positions are a new axis before the indices: mask [.., positions, indices, ..].
    """
    dtype = ctx.dtype(x)
    computed = computed_in(dtype)
    x = ctx.tensor(x, computed)
    src = ctx.tensor(src, computed)
    mask = matches(ctx, ctx.size(x, axis), index, axis, ctx.rank(x))
    neutral = _neutral(reduction, computed)
    inside = choose(ctx, mask, ctx.unsqueeze(src, [axis]), neutral, computed)
    ctx.set_sizes(inside, _mask_sizes(ctx, ctx.size(x, axis), src, axis))
    reduced = reduce(ctx, REDUCTIONS[reduction], inside, [axis + 1])
    reduced = _to_whole(ctx, reduced, x, neutral)
    if include_self and reduction != "mean":
        count = None
    else:
        count = _count(ctx, mask, src, x, axis, computed)
    result = _with_self(ctx, x, reduced, count, reduction, include_self)
    if computed != dtype:
        return ctx.cast(ctx.copy_sizes(x, result), dtype)
    return ctx.wrapped(copy_facts(ctx, x, result), dtype)


def _mask_sizes(
    ctx: ConversionContext, positions: Size, src: ITensor, axis: int
) -> list[Size]:
    sizes = ctx.sizes(src)
    return [*sizes[:axis], positions, *sizes[axis:]]


def _neutral(reduction: str, dtype: torch.dtype) -> float | int:
    operation = REDUCTIONS[reduction]
    if operation in ("MAX", "MIN"):
        return dtypes.reduction_identity(dtype, operation)
    return 1 if operation == "PROD" else 0


def _to_whole(
    ctx: ConversionContext, reduced: ITensor, x: ITensor, neutral: float | int
) -> ITensor:
    """Extend the result to the whole tensor. The index may cover only a part of the other axes; the
    rest does not change.
    """
    pads: list[Size] = []
    for length, target in zip(
        reversed(ctx.sizes(reduced)), reversed(ctx.sizes(x)), strict=True
    ):
        pads += [0, target - length]
    return padded(ctx, reduced, pads, "constant", neutral)


def _count(
    ctx: ConversionContext,
    mask: ITensor,
    src: ITensor,
    x: ITensor,
    axis: int,
    dtype: torch.dtype,
) -> ITensor:
    """The number of values for each output position."""
    wide = ctx.expand(mask, _mask_sizes(ctx, ctx.size(x, axis), src, axis))
    ones = ctx.cast(wide, dtype)
    return _to_whole(ctx, reduce(ctx, "SUM", ones, [axis + 1]), x, 0)


def _with_self(
    ctx: ConversionContext,
    x: ITensor,
    reduced: ITensor,
    count: Any,
    reduction: str,
    include_self: bool,
) -> ITensor:
    if include_self:
        reduced = ctx.elementwise(REDUCTIONS[reduction], x, reduced)
    if reduction == "mean":
        # count + 1 if the element itself counts, else max(count, 1) to avoid a division by 0
        operation = "SUM" if include_self else "MAX"
        divisor = ctx.elementwise(operation, count, ctx.like_scalar(count, 1))
        division = "DIV" if ctx.dtype(x).is_floating_point else "FLOOR_DIV"
        reduced = ctx.elementwise(division, reduced, divisor)
    if include_self:
        return reduced
    return choose(
        ctx, less(ctx, ctx.like_scalar(count, 0), count), reduced, x, ctx.dtype(x)
    )


def _affordable(ctx: ConversionContext, args: SimpleNamespace) -> str | None:
    """at most 2^28 comparisons"""
    if ctx.rank(args.self):
        positions = _maximum_length(ctx, args.self, ctx.axis(args.self, args.dim))
    else:
        positions = 1
    volume = positions
    for axis in range(ctx.rank(args.index)):
        volume *= _maximum_length(ctx, args.index, axis)
    if volume > MOST_COMPARISONS:
        return (
            f"reducing {volume // positions} indices to {positions} positions takes {volume} "
            "comparisons in memory"
        )
    return None


def _maximum_length(ctx: ConversionContext, x: Tensor, axis: int) -> int:
    """The maximum length of an axis over the profiles; 1 if unknown."""
    span = bounds(ctx.expr(x, axis), ctx.ranges())
    if span is not None and isfinite(span[1]):
        return int(span[1])
    return 1


MEMORY = "compares every position with every index: memory grows with their product"
NAN_OF_EXTREMES = f"for amax and amin, {NAN_UNDEFINED}"

_reducing = functools.partial(converter, when=_affordable, note=MEMORY)


@_reducing("aten::scatter_add")
@_reducing(
    "aten::scatter_reduce.two",
    "aten::scatter.reduce",
    note=f"{MEMORY}; {NAN_OF_EXTREMES}",
)
def scatter_reduce(
    ctx: ConversionContext,
    x: ITensor,
    dim: int,
    index: Tensor,
    src: ITensor,
    reduce: str = "sum",
    include_self: bool = True,
) -> ITensor:
    """self[index[i][j]][j] reduced with src[i][j], for dim 0"""
    whole, index, src = ranked(ctx, x, index, src)
    part = slice_to(ctx, src, ctx.sizes(index))
    result = accumulated(
        ctx, whole, ctx.axis(whole, dim), index, part, reduce, include_self
    )
    return unranked(ctx, x, result)


@_reducing("aten::scatter.value_reduce")
def scatter_value_reduce(
    ctx: ConversionContext,
    x: ITensor,
    dim: int,
    index: Tensor,
    value: Scalar,
    reduce: str,
) -> Any:
    """scatter of one value, added or multiplied"""
    src = ctx.tensor(filled(ctx, ctx.sizes(index), value, ctx.dtype(x)))
    return scatter_reduce(ctx, x, dim, index, src, reduce)


@_reducing("aten::index_add")
def index_add(
    ctx: ConversionContext,
    x: ITensor,
    dim: int,
    index: Tensor,
    source: ITensor,
    alpha: Scalar,
) -> Any:
    """self[index[i]] += alpha * source[i] along dim"""
    if isinstance(alpha, int | float) and alpha == 1:
        scaled = source
    else:
        scaled = combine(ctx, "PROD", source, alpha)
    return index_reduce(ctx, x, dim, index, ctx.tensor(scaled, ctx.dtype(x)), "sum")


@_reducing("aten::index_reduce", note=f"{MEMORY}; {NAN_OF_EXTREMES}")
def index_reduce(
    ctx: ConversionContext,
    x: ITensor,
    dim: int,
    index: Tensor,
    source: ITensor,
    reduce: str,
    include_self: bool = True,
) -> ITensor:
    """self[index[i]] reduced with source[i] along dim"""
    whole, source = ranked(ctx, x, source)
    axis = ctx.axis(whole, dim)
    positions = along_axis(ctx, index, axis, ctx.rank(whole))
    result = accumulated(ctx, whole, axis, positions, source, reduce, include_self)
    return unranked(ctx, x, result)


@converter("aten::put")
def put(
    ctx: ConversionContext, x: ITensor, index: Tensor, source: ITensor, accumulate: bool
) -> ITensor:
    """self.view(-1)[index] = source, or += with accumulate"""
    sizes = ctx.sizes(x)
    flat = ctx.reshape(x, [-1])
    source = ctx.reshape(source, [-1])
    index = ctx.reshape(
        as_index(ctx, from_the_front(ctx, index, ctx.size(flat, 0))), [-1]
    )
    if accumulate:
        result = accumulated(ctx, flat, 0, index, source, "sum")
    else:
        result = scattered(ctx, flat, index, source, 0)
    return ctx.reshape(result, sizes)
