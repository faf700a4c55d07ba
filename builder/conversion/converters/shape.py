"""Reshapes and permutations: one IShuffleLayer, or no layer if nothing changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy

from builder.conversion import scalars
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, Size, bounds, expression
from builder.conversion.registry import converter
from builder.conversion.values import Tensor
from builder.engine import ITensor


@converter("aten::reshape", "aten::_reshape_alias", dynamic=("stride",))
def reshaped(ctx: ConversionContext, x: ITensor, sizes: Sequence[Size], /) -> ITensor:
    """The same values in row-major order, with other sizes (one may be -1); x itself if they are
    known to be equal.
    """
    if has_sizes(ctx, x, sizes):
        return x
    return ctx.reshape(x, list(sizes))


def has_sizes(ctx: ConversionContext, x: ITensor, sizes: Sequence[Size]) -> bool:
    """Whether all axes of x are known to have these sizes."""
    return ctx.exprs(x) == [expression(size) for size in sizes]


@converter("aten::flatten.using_ints")
def flatten(
    ctx: ConversionContext, x: ITensor, start_dim: int, end_dim: int
) -> ITensor:
    """The axes from start to end (inclusive) become one; a 0-d tensor becomes 1-d."""
    if ctx.rank(x) == 0:
        return ctx.reshape(x, [1])
    start_dim = ctx.axis(x, start_dim)
    end_dim = ctx.axis(x, end_dim)
    if start_dim > end_dim:
        raise Unconvertible("flatten: start_dim comes after end_dim")
    return merged(ctx, x, start_dim, end_dim)


def merged(ctx: ConversionContext, x: ITensor, start: int, end: int) -> ITensor:
    """Axes start to end, both included, as one axis."""
    if start == end:
        return x
    sizes = ctx.sizes(x)
    volume = math.prod(sizes[start : end + 1])
    return ctx.reshape(x, [*sizes[:start], volume, *sizes[end + 1 :]])


@converter("aten::ravel")
def ravel(ctx: ConversionContext, x: ITensor) -> ITensor:
    """All values in one axis."""
    return reshaped(ctx, x, [-1])


@converter("aten::unflatten.int")
def unflatten(
    ctx: ConversionContext, x: ITensor, dim: int, sizes: list[Size]
) -> ITensor:
    """One axis becomes several. One of them may be -1, inferred from the axis and not from the
    whole tensor.
    """
    axis = ctx.axis(x, dim)
    lengths = ctx.sizes(x)
    open_at = [
        i for i, size in enumerate(sizes) if isinstance(size, int) and size == -1
    ]
    if open_at:
        known = [*sizes[: open_at[0]], *sizes[open_at[0] + 1 :]]
        sizes[open_at[0]] = lengths[axis] // math.prod(known)
    return reshaped(ctx, x, [*lengths[:axis], *sizes, *lengths[axis + 1 :]])


def permuted(ctx: ConversionContext, x: ITensor, order: Sequence[int]) -> ITensor:
    """x with its axes in another order; x itself for the identity."""
    if list(order) == list(range(len(order))):
        return x
    return ctx.permute(x, order)


@converter("aten::permute")
def permute(ctx: ConversionContext, x: ITensor, dims: list[int]) -> ITensor:
    """Axis i of the result is axis dims[i]."""
    return permuted(ctx, x, [ctx.axis(x, dim) for dim in dims])


@converter("aten::transpose.int", "aten::swapaxes", "aten::swapdims")
def transpose(
    ctx: ConversionContext, x: ITensor, first: int, second: int, /
) -> ITensor:
    """Two axes are swapped."""
    first = ctx.axis(x, first)
    second = ctx.axis(x, second)
    order = list(range(ctx.rank(x)))
    if order:
        order[first], order[second] = second, first
    return permuted(ctx, x, order)


def _reversed_axes(ctx: ConversionContext, x: ITensor) -> ITensor:
    """All axes in reverse order."""
    return permuted(ctx, x, list(range(ctx.rank(x)))[::-1])


def _matrix_transpose(ctx: ConversionContext, x: ITensor) -> Any:
    """The last two axes are swapped. Tensors are real, so the adjoint is the transpose."""
    return transpose(ctx, x, -2, -1)


for _name, _build in {
    "t": _reversed_axes,
    "numpy_T": _reversed_axes,
    "numpy_T.a": _reversed_axes,
    "mT": _matrix_transpose,
    "mT.a": _matrix_transpose,
    "mH": _matrix_transpose,
    "mH.a": _matrix_transpose,
    "adjoint": _matrix_transpose,
}.items():
    converter(f"aten::{_name}")(_build)


@converter(
    "aten::movedim.int",
    "aten::moveaxis.int",
    "aten::movedim.intlist",
    "aten::moveaxis.intlist",
)
def movedim(
    ctx: ConversionContext,
    x: ITensor,
    source: int | list[int],
    destination: int | list[int],
) -> ITensor:
    """The source axes go to the destinations; the others keep their order."""
    origins = [source] if isinstance(source, int) else source
    targets = [destination] if isinstance(destination, int) else destination
    pairs = zip(origins, targets, strict=True)
    moved = {ctx.axis(x, to): ctx.axis(x, origin) for origin, to in pairs}
    axes = range(ctx.rank(x))
    others = [axis for axis in axes if axis not in moved.values()]
    order = []
    for axis in axes:
        if axis in moved:
            order.append(moved[axis])
        else:
            order.append(others.pop(0))
    return permuted(ctx, x, order)


@converter("aten::squeeze")
def squeeze(ctx: ConversionContext, x: ITensor) -> ITensor:
    """Removes the axes of size 1. Refused if a dynamic axis may have size 1, because the rank would
    depend on it.
    """
    open_axes = [
        axis
        for axis, length in enumerate(x.shape)
        if length < 0 and _may_be_one(ctx, x, axis)
    ]
    if open_axes:
        raise Unconvertible(
            f"squeeze without `dim` may remove the dynamic axis {open_axes[0]}, so the rank is not"
            " known",
            "name the axes: squeeze(dim)",
        )
    return ctx.squeeze(x, [axis for axis, length in enumerate(x.shape) if length == 1])


def _may_be_one(ctx: ConversionContext, x: ITensor, axis: int) -> bool:
    return scalars.decided(ctx, "gt", ctx.size(x, axis), 1) is not True


@converter("aten::squeeze.dim", "aten::squeeze.dims")
def squeeze_dim(ctx: ConversionContext, x: ITensor, dim: int | list[int]) -> ITensor:
    """Removes the specified axes of size 1. A dynamic axis stays if its range is above 1."""
    if ctx.rank(x) == 0:
        return x
    dims = [dim] if isinstance(dim, int) else dim
    axes = sorted({ctx.axis(x, number) for number in dims})
    dynamic = [axis for axis in axes if x.shape[axis] < 0]
    unsure = [axis for axis in dynamic if _may_be_one(ctx, x, axis)]
    if unsure:
        raise Unconvertible(
            f"squeeze of the dynamic axis {unsure[0]} ({ctx.expr(x, unsure[0])}): its size may be "
            "1",
            "give the axis one size, or a minimum above 1, in the manifest",
        )
    return ctx.squeeze(x, [axis for axis in axes if x.shape[axis] == 1])


@converter("aten::unsqueeze")
def unsqueeze(ctx: ConversionContext, x: ITensor, dim: int) -> ITensor:
    """A new axis of size 1."""
    return ctx.unsqueeze(x, [dim % (ctx.rank(x) + 1)])


@converter("aten::expand", "aten::broadcast_to")
def expand(ctx: ConversionContext, x: ITensor, size: list[Size]) -> ITensor:
    """Axes of size 1 repeat up to `size`; -1 keeps an axis."""
    for length in size:
        if isinstance(length, DynamicScalar) and _falls_below_zero(ctx, length):
            raise Unconvertible(
                f"expand receives the size {length.expr}, which is -1 for some sizes of the inputs",
                "use max(..., 1), in a scripted function, or narrow the axis in `dims`",
            )
    return ctx.expand(x, size)


def _falls_below_zero(ctx: ConversionContext, size: DynamicScalar) -> bool:
    """Whether a size is certainly -1 for some inputs, for which torch keeps the axis. Known only
    for multiples of one axis with an offset, whose bounds are exact.
    """
    linear = len(size.expr.free_symbols) == 1 and size.expr.is_polynomial()
    if not linear or sympy.Poly(size.expr).degree() != 1:
        return False
    span = bounds(size.expr, ctx.ranges())
    return span is not None and bool(span[0] < 0)


@converter("aten::expand_as")
def expand_as(ctx: ConversionContext, x: ITensor, other: Tensor) -> ITensor:
    """self.expand(other.size())"""
    return ctx.expand(x, ctx.sizes(other))


def broadcast_sizes(ctx: ConversionContext, tensors: Sequence[ITensor]) -> list[Size]:
    """The broadcast sizes of the tensors: for each axis the size that is not 1, or the largest."""
    rank = max(ctx.rank(tensor) for tensor in tensors)
    result: list[Size] = [1] * rank
    for tensor in tensors:
        for axis, size in enumerate(ctx.sizes(tensor), start=rank - ctx.rank(tensor)):
            result[axis] = _broadcast(ctx, result[axis], size)
    return result


def _broadcast(ctx: ConversionContext, a: Size, b: Size) -> Size:
    if a == 1:
        return b
    if b == 1:
        return a
    for size in (a, b):
        if isinstance(size, int):
            return size
    larger: Size = ctx.maximum(a, b)
    return larger


@converter("aten::broadcast_tensors")
def broadcast_tensors(ctx: ConversionContext, tensors: list[ITensor]) -> list[ITensor]:
    """Each tensor expanded to the sizes that all broadcast to."""
    sizes = broadcast_sizes(ctx, tensors)
    return [ctx.expand(tensor, sizes) for tensor in tensors]


def _unchanged(ctx: ConversionContext, x: ITensor) -> ITensor:
    """The tensor itself: network tensors have no memory layout."""
    return x


for _key in (
    "contiguous",
    "clone",
    "detach",
    "alias",
    "lift_fresh",
    "lift_fresh_copy",
):
    converter(f"aten::{_key}")(_unchanged)
