"""Counting and searching: one_hot, bucketize, searchsorted, and operators with data-dependent
output sizes.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from builder.conversion import nonzero
from builder.conversion.context import ConversionContext
from builder.conversion.converters.indexing import element_gathered
from builder.conversion.converters.select import select_index
from builder.conversion.converters.shape import broadcast_sizes
from builder.conversion.dynamic import DynamicScalar, Size, bounds
from builder.conversion.layers import comparison, reduce
from builder.conversion.registry import converter
from builder.conversion.spatial import iota
from builder.conversion.values import Scalar
from builder.engine import ITensor, trt


def _classes_known(ctx: ConversionContext, args: SimpleNamespace) -> str | None:
    """with num_classes"""
    classes = args.num_classes
    if isinstance(classes, DynamicScalar):
        span = bounds(classes.expr, ctx.ranges())
        may_be_negative = span is not None and span[0] < 0
    else:
        may_be_negative = classes < 0
    if may_be_negative:
        return "one_hot without num_classes: the number of columns depends on the largest value"
    return None


@converter("aten::one_hot", when=_classes_known)
def one_hot(ctx: ConversionContext, x: ITensor, num_classes: Size) -> ITensor:
    """[*] -> [*, classes]: 1 in the column that the value names"""
    rank = ctx.rank(x)
    column = ctx.unsqueeze(x, [rank])
    numbers = ctx.at_rank(iota(ctx, num_classes, ctx.dtype(x)), rank + 1)
    is_class = ctx.elementwise("EQUAL", column, numbers)
    return ctx.cast(ctx.set_sizes(is_class, [*ctx.sizes(x), num_classes]), torch.int64)


def _search_positions(
    ctx: ConversionContext, sequence: ITensor, values: ITensor, right: bool, int32: bool
) -> ITensor:
    """[*, m]: the number of elements of sequence [*, n] before each of values [*, m]; NaN is last,
    as in torch's sort.
    """
    dtype = torch.int32 if int32 else torch.int64
    rank = ctx.rank(values)
    column = ctx.unsqueeze(values, [rank])
    if ctx.rank(sequence) == 1:
        row = ctx.at_rank(sequence, rank + 1)
    else:
        row = ctx.unsqueeze(sequence, [rank - 1])
    after = comparison(ctx, "gt" if right else "ge", row, column)
    sizes = [*ctx.sizes(values), ctx.size(sequence, ctx.rank(sequence) - 1)]
    before = ctx.cast(
        ctx.set_sizes(ctx.unary("NOT", ctx.set_sizes(after, sizes)), sizes), dtype
    )
    return reduce(ctx, "SUM", before, [rank])


NAN_IN_SEQUENCE = "NaN in the sorted sequence is not handled"


@converter("aten::bucketize.Tensor", "aten::bucketize.Scalar", note=NAN_IN_SEQUENCE)
def bucketize(
    ctx: ConversionContext,
    x: ITensor | Scalar,
    boundaries: ITensor,
    out_int32: bool,
    right: bool,
) -> ITensor:
    """The number of boundaries below each value (with right: below or equal)"""
    return _flat_positions(ctx, boundaries, ctx.tensor(x), right, out_int32)


def _flat_positions(
    ctx: ConversionContext, sequence: ITensor, values: ITensor, right: bool, int32: bool
) -> ITensor:
    if ctx.rank(values):
        return _search_positions(ctx, sequence, values, right, int32)
    return ctx.reshape(
        _search_positions(ctx, sequence, ctx.reshape(values, [1]), right, int32), []
    )


@converter(
    "aten::searchsorted.Tensor", "aten::searchsorted.Scalar", note=NAN_IN_SEQUENCE
)
def searchsorted(
    ctx: ConversionContext,
    sorted_sequence: ITensor,
    self: ITensor | Scalar,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: ITensor | None,
) -> ITensor:
    """The insertion index of each value in the sorted last axis of sequence, before (with right:
    after) equal values
    """
    if sorter is not None:
        sorted_sequence = element_gathered(
            ctx, sorted_sequence, sorter, ctx.rank(sorted_sequence) - 1
        )
    return _flat_positions(
        ctx, sorted_sequence, ctx.tensor(self), right or side == "right", out_int32
    )


_DATA = "its size depends on the data: needs TensorRT (not RTX) and, served, Triton 23.09 or newer"


@converter("aten::nonzero", "aten::argwhere", when=nonzero.data_dependent, note=_DATA)
def find(ctx: ConversionContext, x: ITensor) -> ITensor:
    """[found, rank]: the indices of the nonzero elements"""
    return nonzero.positions(ctx, x)


@converter(
    "aten::nonzero_numpy", "aten::where", when=nonzero.data_dependent, note=_DATA
)
def nonzero_numpy(ctx: ConversionContext, x: ITensor, /) -> list[ITensor]:
    """nonzero, one vector for each axis"""
    positions = nonzero.positions(ctx, x)
    return [select_index(ctx, positions, 1, axis) for axis in range(ctx.rank(x))]


@converter("aten::masked_select", when=nonzero.data_dependent, note=_DATA)
def masked_select(ctx: ConversionContext, x: ITensor, mask: ITensor) -> ITensor:
    """The values where mask is true, in order"""
    sizes = broadcast_sizes(ctx, [x, mask]) or [1]  # a gather needs an axis
    return values_at(
        ctx, ctx.expand(x, sizes), nonzero.positions(ctx, ctx.expand(mask, sizes))
    )


def values_at(ctx: ConversionContext, x: ITensor, positions: ITensor) -> ITensor:
    """x's values (or rows) at coordinate tuples [found, axes]: one IGatherLayer in ND mode."""
    result = ctx.net.add_gather_v2(x, positions, trt.GatherMode.ND).get_output(0)
    ctx.remember_dtype(result, ctx.dtype(x))
    return result
