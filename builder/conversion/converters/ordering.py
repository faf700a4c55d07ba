"""Largest and smallest elements, and sorting, by ITopKLayer.

TensorRT keeps at most 3840 elements, and does not define the order of equal values (the reference
returns the first, as PyTorch's argmax does).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion import dtypes
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.select import sliced
from builder.conversion.dynamic import DynamicScalar, Size, bounds
from builder.conversion.layers import computed_in, reduce
from builder.conversion.registry import Predicate, converter, for_each
from builder.conversion.spatial import iota
from builder.engine import ITensor, trt
from builder.graph_types import Node

LIMIT = 3840
"""INetworkDefinition.add_topk: "Currently only values of K up to 3840 are supported"."""
TIES = (
    "TensorRT does not define the order of equal values and of NaN; PyTorch returns the first for "
    "argmax, argmin, max and min, and NaN is its largest value"
)


def maximum_length(ctx: ConversionContext, size: Size) -> int | None:
    """The largest value of a size over the profiles; None if not known."""
    if isinstance(size, int):
        return size
    span = bounds(size.expr, dict(ctx.ranges()))
    return None if span is None else span[1]


def within_limit(count: Any) -> Predicate:
    """A predicate: `count(ctx, arguments)` elements, at most, are kept."""

    def check(ctx: ConversionContext, arguments: SimpleNamespace) -> str | None:
        most = maximum_length(ctx, count(ctx, arguments))
        if most is None:
            return "how many elements are kept is not bounded by the profiles"
        if most > LIMIT:
            return f"TensorRT's top-k keeps at most {LIMIT} elements, this keeps {most}"
        return None

    check.__doc__ = f"keeps at most {LIMIT} elements"
    return check


def _length(ctx: ConversionContext, arguments: SimpleNamespace) -> Size:
    x = arguments.self
    if ctx.rank(x):
        return ctx.size(x, arguments.dim)
    return 1


def topk_layers(
    ctx: ConversionContext, x: ITensor, k: Size, axis: int, *, largest: bool
) -> tuple[Any, ...]:
    """The k largest or smallest values along an axis, sorted from that end, and their indices as
    int64. A vector is computed as a matrix of one row.
    """
    dtype = ctx.dtype(x)
    if ctx.rank(x) < 2:
        values, positions = topk_layers(ctx, ctx.at_rank(x, 2), k, 1, largest=largest)
        axes = list(range(2 - ctx.rank(x)))
        return ctx.squeeze(values, axes), ctx.squeeze(positions, axes)
    if axis < ctx.rank(x) - 4:  # "it must be one of the last four dimensions"
        order = [other for other in range(ctx.rank(x)) if other != axis] + [axis]
        back = [order.index(other) for other in range(ctx.rank(x))]
        values, positions = topk_layers(
            ctx, ctx.permute(x, order), k, ctx.rank(x) - 1, largest=largest
        )
        return ctx.permute(values, back), ctx.permute(positions, back)
    if k == 0:  # some versions require k > 0
        none = sliced(ctx, x, axis, 0, 0)
        return none, ctx.cast(none, torch.int64)
    if dtype == torch.bool:
        x = ctx.cast(x, torch.int32)
    supported = ctx.capabilities.takes("TOPK", x.dtype.name)
    select = _topk_layer if supported else _topk_of_integers
    values, positions = select(ctx, x, k, axis, largest=largest)
    sizes = ctx.sizes(x)
    sizes[axis] = k
    ctx.remember_dtype(values, computed_in(dtype))
    values = ctx.cast(ctx.set_sizes(values, sizes), dtype)
    return values, ctx.cast(ctx.set_sizes(positions, sizes), torch.int64)


RANKED_AT_MOST = 4096
"""All pairs of elements are compared: 16 million bools for a row of this length."""


def _topk_of_integers(
    ctx: ConversionContext, x: ITensor, k: Size, axis: int, *, largest: bool
) -> tuple[Any, ...]:
    """The same for int32 if the layer supports only floats, exactly: small integers as float32;
    otherwise one element by a comparison with the extreme value, several by their rank.
    """
    if ctx.dtype(x) in (torch.bool, torch.uint8, torch.int8):
        values, positions = _topk_layer(
            ctx, ctx.cast(x, torch.float32), k, axis, largest=largest
        )
        return ctx.cast(values, torch.int32), positions
    if k == 1:
        values = reduce(ctx, "MAX" if largest else "MIN", x, [axis], keepdim=True)
        key = ctx.elementwise("EQUAL", x, values)
        _, positions = _topk_layer(
            ctx, ctx.cast(key, torch.float32), 1, axis, largest=True
        )
        return values, positions
    ranks = ctx.cast(_ranks(ctx, x, axis, largest), torch.float32)
    _, positions = _topk_layer(ctx, ranks, k, axis, largest=False)
    layer = ctx.net.add_gather_v2(x, positions, trt.GatherMode.ELEMENT)
    layer.axis = axis
    return layer.get_output(0), positions


def _ranks(ctx: ConversionContext, x: ITensor, axis: int, largest: bool) -> ITensor:
    """The rank of each element along an axis: the number of elements before it in sorted order."""
    length = ctx.size(x, axis)
    last = ctx.rank(x)
    most = maximum_length(ctx, length)
    if most is None or most > RANKED_AT_MOST:
        raise Unconvertible(
            f"this TensorRT sorts only floats; integers are supported up to {RANKED_AT_MOST} "
            "elements"
        )
    # [..., i, j, ...]
    elements = ctx.unsqueeze(x, [axis + 1])
    others = ctx.unsqueeze(x, [axis])
    position = iota(ctx, length, torch.int32)
    ones: list[Size] = [1] * last
    i = ctx.reshape(position, [*ones[:axis], length, *ones[axis:]])
    j = ctx.reshape(position, [*ones[: axis + 1], length, *ones[axis + 1 :]])
    better = ctx.elementwise("GREATER" if largest else "LESS", others, elements)
    tied = ctx.elementwise(
        "AND", ctx.elementwise("EQUAL", others, elements), ctx.elementwise("LESS", j, i)
    )
    before = ctx.copy_sizes(better, ctx.elementwise("OR", better, tied))
    return ctx.copy_sizes(
        x, reduce(ctx, "SUM", ctx.cast(before, torch.int32), [axis + 1])
    )


def _topk_layer(
    ctx: ConversionContext, x: ITensor, k: Size, axis: int, *, largest: bool
) -> tuple[Any, ...]:
    operation = trt.TopKOperation.MAX if largest else trt.TopKOperation.MIN
    layer = ctx.net.add_topk(x, operation, k if isinstance(k, int) else 1, 1 << axis)
    if isinstance(k, DynamicScalar):
        layer.set_input(1, ctx.tensor(k))
    if hasattr(layer, "indices_type"):  # spares a cast
        layer.indices_type = dtypes.to_trt(dtypes.index_dtype())
    return layer.get_output(0), layer.get_output(1)


@converter("aten::topk", when=within_limit(lambda ctx, a: a.k), note=TIES)
def topk(ctx: ConversionContext, x: ITensor, k: Size, dim: int, largest: bool) -> Any:
    """The k largest or smallest along an axis, sorted, and their indices"""
    if ctx.rank(x) == 0:
        return x, torch.tensor(0)
    return topk_layers(ctx, x, k, ctx.axis(x, dim), largest=largest)


def ordered(
    ctx: ConversionContext, x: ITensor, dim: int, *, descending: bool = False
) -> tuple[Any, ...]:
    """All values along an axis in order, and their indices."""
    if ctx.rank(x) == 0:
        return x, ctx.tensor(torch.tensor(0))
    return topk_layers(ctx, x, ctx.size(x, dim), ctx.axis(x, dim), largest=descending)


_whole_axis = within_limit(_length)


@converter("aten::sort", "aten::sort.stable", when=_whole_axis, note=TIES)
def sort(ctx: ConversionContext, x: ITensor, dim: int, descending: bool) -> Any:
    """The values in order, and their indices"""
    return ordered(ctx, x, dim, descending=descending)


@converter("aten::argsort", "aten::argsort.stable", when=_whole_axis, note=TIES)
def argsort(ctx: ConversionContext, x: ITensor, dim: int, descending: bool) -> Any:
    """The indices of the values in order"""
    return ordered(ctx, x, dim, descending=descending)[1]


@converter(
    "aten::msort",
    when=within_limit(lambda ctx, a: ctx.size(a.self, 0)),
    note=TIES,
)
def msort(ctx: ConversionContext, x: ITensor) -> Any:
    """The values in order along the first axis"""
    return ordered(ctx, x, 0)[0]


def extreme(
    ctx: ConversionContext, x: ITensor, dim: int | None, keepdim: bool, largest: bool
) -> tuple[Any, ...]:
    """The largest or smallest value along an axis, and its index. Without `dim`, of the flattened
    tensor.
    """
    rank = ctx.rank(x)
    if rank == 0:
        return x, ctx.tensor(torch.tensor(0))
    if dim is None:
        results = topk_layers(ctx, ctx.reshape(x, [-1]), 1, 0, largest=largest)
        shape = [1] * rank if keepdim else []
        return tuple(ctx.reshape(result, shape) for result in results)
    axis = ctx.axis(x, dim)
    values, indices = topk_layers(ctx, x, 1, axis, largest=largest)
    if keepdim:
        return values, indices
    return ctx.squeeze(values, [axis]), ctx.squeeze(indices, [axis])


@for_each(("max", True), ("min", False))
def _register_extreme(name: str, largest: bool) -> None:
    @converter(f"aten::arg{name}", note=TIES)
    def index_of(
        ctx: ConversionContext, x: ITensor, dim: int | None, keepdim: bool
    ) -> Any:
        return extreme(ctx, x, dim, keepdim, largest)[1]

    @converter(f"aten::{name}.dim", note=TIES)
    def value_and_index(
        ctx: ConversionContext, node: Node, x: ITensor, dim: int, keepdim: bool
    ) -> Any:
        if node.outputsAt(1).uses() or ctx.dtype(x) == torch.bool or not ctx.rank(x):
            return extreme(ctx, x, dim, keepdim, largest)
        # Nothing reads the indices: a reduction is cheaper.
        return reduce(
            ctx, name.upper(), x, [ctx.axis(x, dim)], keepdim=keepdim
        ), torch.tensor(0)


@converter("aten::kthvalue", when=within_limit(lambda ctx, a: a.k), note=TIES)
def kthvalue(
    ctx: ConversionContext, x: ITensor, k: int, dim: int, keepdim: bool
) -> tuple[Any, ...]:
    """The k-th smallest along an axis, and its index: the last of the k smallest"""
    if ctx.rank(x) == 0:
        return x, ctx.tensor(torch.tensor(0))
    axis = ctx.axis(x, dim)
    last = [
        _last(ctx, tensor, k, axis)
        for tensor in topk_layers(ctx, x, k, axis, largest=False)
    ]
    if keepdim:
        return tuple(last)
    return tuple(ctx.squeeze(tensor, [axis]) for tensor in last)


def _last(ctx: ConversionContext, x: ITensor, k: int, axis: int) -> ITensor:
    sizes = ctx.sizes(x)
    sizes[axis] = 1
    starts = [0] * len(sizes)
    starts[axis] = k - 1
    return ctx.slice(x, starts, sizes)
