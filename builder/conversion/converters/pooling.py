"""Average and maximum pooling over one to three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from builder.conversion.arguments import dynamic_value
from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.layers import choose, combine, less, reduce
from builder.conversion.registry import converter
from builder.conversion.spatial import (
    as_image,
    filled,
    filled_slice,
    iota,
    note_spatial,
    windows,
    with_unit,
)
from builder.engine import dialect
from builder.engine.flavour import trt


@dataclass(frozen=True)
class Pool:
    """The settings of one pooling, one number a spatial axis; an empty stride is the window itself."""

    window: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil: bool

    @staticmethod
    def of(axes: int, window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Pool:
        """From PyTorch's arguments, with the unit axis that one-dimensional pooling gets."""
        sizes = filled(window, axes)
        steps = filled(stride, axes) if stride not in ([], None) else sizes
        pads, spread = filled(padding, axes), filled(dilation, axes)
        return Pool(with_unit(sizes, 1), with_unit(steps, 1), with_unit(pads, 0), with_unit(spread, 1), ceil)

    def reach(self, axis: int) -> int:
        """How many elements one window spans."""
        return self.dilation[axis] * (self.window[axis] - 1) + 1


def output_length(ctx: ConversionContext, pool: Pool, axis: int, length: Size) -> Size:
    """PyTorch's number of windows: rounding up, a window that starts in the padding behind is dropped."""
    span, step, pad = pool.reach(axis), pool.stride[axis], pool.padding[axis]
    more = step - 1 if pool.ceil else 0
    rest = ctx.arithmetic("add", length, 2 * pad - span + more)
    count = ctx.arithmetic("add", rest if step == 1 else ctx.arithmetic("floordiv", rest, step), 1)
    if not pool.ceil or pad + step <= span:  # the last window then always starts within the input
        return count  # type: ignore[no-any-return]
    starting = ctx.arithmetic("add", ctx.arithmetic("floordiv", ctx.arithmetic("add", length, pad - 1), step), 1)
    return ctx.arithmetic("min", count, starting)  # type: ignore[no-any-return]


def _may_drop(pool: Pool) -> list[int]:
    return [a for a, n in enumerate(pool.window) if pool.ceil and pool.padding[a] + pool.stride[a] > pool.reach(a)]


def pooled(ctx: ConversionContext, x: Any, kind: str, pool: Pool, counted: str = "inside") -> Any:
    """One IPoolingLayer over (N, C, spatial); windows that PyTorch drops are cut off behind.

    `counted` says what an average is divided by: the elements "inside" the input, those of the "padded" input, or the
    whole "window".
    """
    layer = ctx.net.add_pooling_nd(x, getattr(trt.PoolingType, kind), trt.Dims(pool.window))
    layer.stride_nd = trt.Dims(pool.stride)
    layer.pre_padding = trt.Dims(pool.padding)
    whole = counted == "window" and pool.ceil
    after = [p + (s - 1 if whole else 0) for p, s in zip(pool.padding, pool.stride, strict=True)]
    layer.post_padding = trt.Dims(after)
    up = pool.ceil and not whole and not _all_dropped(pool, x)
    layer.padding_mode = getattr(trt.PaddingMode, "EXPLICIT_ROUND_UP" if up else "EXPLICIT_ROUND_DOWN")
    if kind == "AVERAGE":
        layer.average_count_excludes_padding = counted == "inside"
    y = layer.get_output(0)

    def length(i: int, size: sympy.Expr) -> sympy.Expr:
        return windows(size, pool.padding[i] + after[i], pool.window[i], pool.stride[i], up)

    return _without_dropped(ctx, note_spatial(ctx, x, y, length), x, pool)


def _all_dropped(pool: Pool, x: Any) -> bool:
    """Whether rounding down gives PyTorch's length on every axis, so that nothing need be cut off."""
    for axis, length in enumerate(x.shape[2:]):
        if length < 0:
            return False
        rest = length + 2 * pool.padding[axis] - pool.window[axis]
        up = -(-rest // pool.stride[axis])
        if up != rest // pool.stride[axis] and up * pool.stride[axis] < length + pool.padding[axis]:
            return False
    return True


def _without_dropped(ctx: ConversionContext, y: Any, x: Any, pool: Pool) -> Any:
    """Cuts what TensorRT has more than PyTorch where rounding up leaves a window in the padding."""
    lengths = {a + 2: output_length(ctx, pool, a, ctx.size(x, a + 2)) for a in _may_drop(pool)}
    if all(y.shape[axis] == size for axis, size in lengths.items()):
        return y
    sizes = [lengths.get(axis, ctx.size(y, axis)) for axis in range(ctx.rank(y))]
    return ctx.slice(y, [0] * len(sizes), sizes, [1] * len(sizes))


# Averages


def _of_padded(ctx: ConversionContext, x: Any, pool: Pool) -> Any:
    """Averages over the part of each window in the padded input, from averages over whole windows: these divided by
    the same averages of ones."""
    means = pooled(ctx, x, "AVERAGE", pool, "window")
    sizes = [ctx.arithmetic("add", ctx.size(x, a + 2), 2 * pad) for a, pad in enumerate(pool.padding)]
    one = ctx.constant(torch.ones([1] * ctx.rank(x), dtype=ctx.dtype(x)))
    ones = ctx.expand(one, [1, 1, *sizes])
    parts = pooled(ctx, ones, "AVERAGE", replace(pool, padding=[0] * len(sizes)), "window")
    kept = [1, 1, *ctx.sizes(means)[2:]]
    parts = ctx.slice(parts, [0] * len(kept), kept, [1] * len(kept))
    return ctx.copy_sizes(means, ctx.elementwise("DIV", means, parts))


def floats(ctx: ConversionContext, call: Any) -> str | None:
    """Refuses integers."""
    dtype = ctx.dtype(call.self)
    return None if dtype.is_floating_point else f"TensorRT averages floating tensors only, the input is {dtype}"


def _register_average(axes: int) -> None:
    override = ", int? divisor_override=None" if axes > 1 else ""
    zero = "0" if axes > 1 else "[0]"

    @converter(
        f"aten::avg_pool{axes}d(Tensor self, int[{axes}] kernel_size, int[{axes}] stride=[], "
        f"int[{axes}] padding={zero}, bool ceil_mode=False, bool count_include_pad=True{override}) -> Tensor",
        when=floats,
    )
    def average(
        ctx: ConversionContext, node: Any, x: Any, window: Any, stride: Any, padding: Any, ceil: bool, include: bool,
        divisor: int | None = None,
    ) -> Any:  # fmt: skip
        """The sum of each window over the size of the window, of its part in the (padded) input, or `divisor`"""
        image, undo = as_image(ctx, x, axes)
        pool = Pool.of(axes, window, stride, padding, 1, ceil)
        padded = any(pool.padding) or ceil
        if divisor is None:
            counted = "padded" if include or not padded else "inside"
            whole = counted == "padded" and ceil and not dialect.takes("POOLING.PADDED_UP", image.dtype.name)
            return undo(_of_padded(ctx, image, pool) if whole else pooled(ctx, image, "AVERAGE", pool, counted))
        means = pooled(ctx, image, "AVERAGE", pool, "window")
        return undo(combine(ctx, "PROD", means, math.prod(pool.window) / divisor))


# Maxima


def _register_maximum(axes: int) -> None:
    zero, one = ("0", "1") if axes > 1 else ("[0]", "[1]")
    tail = (
        f"(Tensor self, int[{axes}] kernel_size, int[{axes}] stride=[], int[{axes}] padding={zero}, "
        f"int[{axes}] dilation={one}, bool ceil_mode=False)"
    )

    @converter(f"aten::max_pool{axes}d{tail} -> Tensor")
    def maximum(
        ctx: ConversionContext, node: Any, x: Any, window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
    ) -> Any:
        """The maximum of each window; padding never wins"""
        image, undo = as_image(ctx, x, axes)
        return undo(_maximum(ctx, image, Pool.of(axes, window, stride, padding, dilation, ceil)))

    @converter(f"aten::max_pool{axes}d_with_indices{tail} -> (Tensor, Tensor)")
    def with_indices(
        ctx: ConversionContext, node: Any, x: Any, window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
    ) -> Any:
        """The maxima and, where somebody reads them, their positions in the flattened input"""
        image, undo = as_image(ctx, x, axes)
        pool = Pool.of(axes, window, stride, padding, dilation, ceil)
        if not node.outputsAt(1).uses():
            return undo(_maximum(ctx, image, pool)), None
        return tuple(undo(t) for t in _tapped(ctx, image, pool, indices=True))


def _maximum(ctx: ConversionContext, x: Any, pool: Pool) -> Any:
    if ctx.dtype(x).is_floating_point and all(d == 1 for d in pool.dilation):
        return pooled(ctx, x, "MAX", pool)
    return _tapped(ctx, x, pool, indices=False)[0]


def _tapped(ctx: ConversionContext, x: Any, pool: Pool, indices: bool) -> tuple[Any, Any]:
    """The maximum over the taps of the window, one strided slice each; the first of equal ones gives the index.

    Serves what IPoolingLayer does not: dilation, integers, indices.
    """
    lengths = [output_length(ctx, pool, a, ctx.size(x, a + 2)) for a in range(len(pool.window))]
    padded = _padded(ctx, x, pool, lengths, lowest(ctx.dtype(x)))
    places = _padded(ctx, _places(ctx, x), pool, lengths, 0) if indices else None
    best = place = None
    for tap in _taps(pool.window):
        value = _tap(ctx, padded, pool, lengths, tap)
        where = _tap(ctx, places, pool, lengths, tap) if indices else None
        if best is None:
            best, place = value, where
        elif indices:
            better = _beats(ctx, value, best)
            best, place = choose(ctx, better, value, best), choose(ctx, better, where, place)
        else:
            best = ctx.copy_sizes(best, ctx.elementwise("MAX", best, value))
    if indices:  # every channel and image had the same places only until the first comparison
        place = ctx.expand(place, ctx.sizes(best))
    return best, place


def _beats(ctx: ConversionContext, value: Any, best: Any) -> Any:
    """value > best, or value is NaN: PyTorch's rule for the index."""
    greater = less(ctx, best, value)
    if not ctx.dtype(value).is_floating_point:
        return greater
    return ctx.elementwise("OR", greater, ctx.unary("NOT", ctx.elementwise("EQUAL", value, value)))


def lowest(dtype: torch.dtype) -> float | int:
    """What loses against everything."""
    return -math.inf if dtype.is_floating_point else int(torch.iinfo(dtype).min)


def _places(ctx: ConversionContext, x: Any) -> Any:
    """The position of each element in the flattened spatial axes, with axes of size 1 for N and C."""
    lengths = ctx.sizes(x)[2:]
    return ctx.reshape(iota(ctx, ctx.product(lengths)), [1, 1, *lengths])


def _padded(ctx: ConversionContext, x: Any, pool: Pool, lengths: Sequence[Size], value: float | int) -> Any:
    """The input with `value` around it, wide enough for every window."""
    starts, sizes = [0, 0], ctx.sizes(x)[:2]
    for axis, count in enumerate(lengths):
        span = ctx.arithmetic("mul", ctx.arithmetic("sub", count, 1), pool.stride[axis])
        starts.append(-pool.padding[axis])
        sizes.append(ctx.arithmetic("add", span, pool.reach(axis)))
    return filled_slice(ctx, x, starts, sizes, value)


def _taps(window: Sequence[int]) -> list[tuple[int, ...]]:
    return [
        tuple(int(i) for i in tap) for tap in torch.cartesian_prod(*map(torch.arange, window)).reshape(-1, len(window))
    ]


def _tap(ctx: ConversionContext, x: Any, pool: Pool, lengths: Sequence[Size], tap: Sequence[int]) -> Any:
    starts = [0, 0, *(i * d for i, d in zip(tap, pool.dilation, strict=True))]
    return ctx.slice(x, starts, [*ctx.sizes(x)[:2], *lengths], [1, 1, *pool.stride])


for _axes in (1, 2, 3):
    _register_average(_axes)
    _register_maximum(_axes)


# Adaptive pooling: output i of O covers floor(i I / O) up to ceil((i + 1) I / O)

ADAPTIVE_AVERAGE = {
    "adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor": 1,
    "adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor": 2,
    "adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor": 3,
    "_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor": 2,
    "_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor": 3,
}


def _register_adaptive_average(schema: str, axes: int) -> None:
    @converter(f"aten::{schema}", dynamic=("output_size",), when=floats)
    def adaptive_average(ctx: ConversionContext, node: Any, x: Any, output: Any) -> Any:
        """The mean of each of the output_size parts that an axis is divided into"""
        return _adaptive(ctx, x, axes, filled(output, axes), "AVERAGE")


for _schema, _axes in ADAPTIVE_AVERAGE.items():
    _register_adaptive_average(_schema, _axes)


def _register_adaptive_maximum(axes: int) -> None:
    @converter(
        f"aten::adaptive_max_pool{axes}d(Tensor self, int[{axes}] output_size) -> (Tensor, Tensor)",
        dynamic=("output_size",),
    )
    def adaptive_maximum(ctx: ConversionContext, node: Any, x: Any, output: Any) -> Any:
        """The maximum of each part, and its position where somebody reads it"""
        sizes = filled(output, axes)
        if not node.outputsAt(1).uses():
            return _adaptive(ctx, x, axes, sizes, "MAX"), None
        return _adaptive_with_indices(ctx, x, axes, sizes)


for _axes in (1, 2, 3):
    _register_adaptive_maximum(_axes)


def _adaptive(ctx: ConversionContext, x: Any, axes: int, sizes: Sequence[Size], kind: str) -> Any:
    """Axes that become 1 are reduced; those with parts of one length are pooled; the others one axis at a time."""
    first = ctx.rank(x) - axes
    wanted = {first + i: size for i, size in enumerate(sizes) if not _keeps(ctx, x, first + i, size)}
    ones = [axis for axis, size in wanted.items() if isinstance(size, int) and size == 1]
    x = reduce(ctx, "AVG" if kind == "AVERAGE" else "MAX", x, ones, True)
    even = {a: s for a, s in wanted.items() if a not in ones and _is_even(x, a, s)}
    if even:
        x = _even(ctx, x, axes, even, kind)
    for axis, size in wanted.items():
        if axis not in ones and axis not in even:
            x = (_average_parts if kind == "AVERAGE" else _maximum_parts)(ctx, x, axis, size)
    return x


def _keeps(ctx: ConversionContext, x: Any, axis: int, size: Size) -> bool:
    own = ctx.size(x, axis)
    if isinstance(own, int) or isinstance(size, int):
        return bool(own == size) if isinstance(own, int) and isinstance(size, int) else False
    return bool(own.expr == size.expr)


def _is_even(x: Any, axis: int, size: Size) -> bool:
    return isinstance(size, int) and x.shape[axis] > 0 and x.shape[axis] % size == 0


def _even(ctx: ConversionContext, x: Any, axes: int, even: dict[int, Any], kind: str) -> Any:
    first = ctx.rank(x) - axes
    window = [x.shape[first + i] // even[first + i] if first + i in even else 1 for i in range(axes)]
    image, undo = as_image(ctx, x, axes)
    return undo(pooled(ctx, image, kind, Pool.of(axes, window, [], 0, 1, False)))


def _bounds(ctx: ConversionContext, length: Size, size: Size) -> tuple[Any, Any]:
    """Where each part starts, and where it ends: 1-d, static where both sizes are."""
    if isinstance(length, int) and isinstance(size, int):
        i = torch.arange(size)
        return i * length // size, -((-(i + 1) * length) // size)
    index = iota(ctx, size)
    starts = combine(ctx, "FLOOR_DIV", combine(ctx, "PROD", index, length), size)
    ends = combine(ctx, "PROD", combine(ctx, "SUM", index, 1), length)
    ends = combine(ctx, "FLOOR_DIV", combine(ctx, "SUM", ends, ctx.arithmetic("sub", size, 1)), size)
    return starts, ends


def _member(ctx: ConversionContext, length: Size, size: Size) -> Any:
    """[size, length], true where element j is of part i; a torch.Tensor where it is static."""
    starts, ends = _bounds(ctx, length, size)
    if isinstance(starts, torch.Tensor) and isinstance(length, int):
        j = torch.arange(length)
        return (j >= starts[:, None]) & (j < ends[:, None])
    j = ctx.unsqueeze(iota(ctx, length), [0])
    starts, ends = (ctx.unsqueeze(t, [1]) for t in (starts, ends))
    return ctx.elementwise("AND", less(ctx, combine(ctx, "SUB", starts, 1), j), less(ctx, j, ends))


def _average_parts(ctx: ConversionContext, x: Any, axis: int, size: Size) -> Any:
    """A matrix product with the rows 1 / count over each part."""
    member = _member(ctx, ctx.size(x, axis), size)
    if isinstance(member, torch.Tensor):
        matrix = member.double()
        matrix = (matrix / matrix.sum(1, keepdim=True)).to(ctx.dtype(x))
    else:
        ones = ctx.cast(member, ctx.dtype(x))
        matrix = combine(ctx, "DIV", ones, reduce(ctx, "SUM", ones, [1], True))
    return along(ctx, matrix, x, axis)


def along(ctx: ConversionContext, matrix: Any, x: Any, axis: int) -> Any:
    """The matrix product over one axis of x: result[..., o, ...] = sum_i matrix[o, i] x[..., i, ...]."""
    rank = ctx.rank(x)
    none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    if axis == rank - 1:
        y = ctx.net.add_matrix_multiply(x, none, ctx.at_rank(matrix, rank), transpose).get_output(0)
        return ctx.set_sizes(y, [*ctx.exprs(x)[:-1], ctx.expr(matrix, 0)] if ctx.rank(y) else [])
    if axis == rank - 2:
        y = ctx.net.add_matrix_multiply(ctx.at_rank(matrix, rank), none, x, none).get_output(0)
        return ctx.set_sizes(y, [*ctx.exprs(x)[:-2], ctx.expr(matrix, 0), ctx.expr(x, rank - 1)])
    sizes = ctx.sizes(x)
    flat = ctx.reshape(x, [*sizes[: axis + 1], ctx.product(sizes[axis + 1 :])])
    y = along(ctx, matrix, flat, axis)
    return ctx.reshape(y, [*sizes[:axis], ctx.size(matrix, 0), *sizes[axis + 1 :]])


def _maximum_parts(ctx: ConversionContext, x: Any, axis: int, size: Size) -> Any:
    """Static: each part gathered up to the longest, its last element repeated. Dynamic: the others masked by -inf."""
    length = ctx.size(x, axis)
    if isinstance(length, int) and isinstance(size, int):
        starts, ends = _bounds(ctx, length, size)
        index = torch.minimum(starts[:, None] + torch.arange(int((ends - starts).max())), ends[:, None] - 1)
        parts = ctx.net.add_gather(x, ctx.constant(index), axis).get_output(0)
        return reduce(ctx, "MAX", parts, [axis + 1], False)
    member = _member(ctx, length, size)
    trailing = ctx.rank(x) - axis - 1
    sizes = [1] * axis + [size, length] + [1] * trailing
    masked = choose(ctx, ctx.reshape(member, sizes), ctx.unsqueeze(x, [axis]), lowest(ctx.dtype(x)), ctx.dtype(x))
    ctx.set_sizes(masked, [*ctx.sizes(x)[:axis], size, *ctx.sizes(x)[axis:]])
    return reduce(ctx, "MAX", masked, [axis + 1], False)


def _adaptive_with_indices(ctx: ConversionContext, x: Any, axes: int, sizes: Sequence[Size]) -> Any:
    """Parts of one static length are windows; the index is that of the windowed maximum."""
    first = ctx.rank(x) - axes
    for i, size in enumerate(sizes):
        if not _is_even(x, first + i, size):
            length = ctx.size(x, first + i)
            if isinstance(length, DynamicScalar):
                raise dynamic_value(f"axis {first + i}, whose positions adaptive_max_pool{axes}d returns,", length)
    parts = [_bounds(ctx, ctx.size(x, first + i), size) for i, size in enumerate(sizes)]
    return _gathered_maximum(ctx, x, first, parts)


def _gathered_maximum(ctx: ConversionContext, x: Any, first: int, parts: Sequence[tuple[Any, Any]]) -> Any:
    """Every part's elements, gathered by their flat positions [outputs, longest]; TopK gives value and place."""
    lengths = [int(n) for n in x.shape[first:]]
    flat = torch.zeros(1, 1, dtype=torch.int64)
    for length, (starts, ends) in zip(lengths, parts, strict=True):
        index = torch.minimum(starts[:, None] + torch.arange(int((ends - starts).max())), ends[:, None] - 1)
        flat = (flat[:, None, :, None] * length + index[None, :, None, :]).flatten(0, 1).flatten(1, 2)
    leading = ctx.sizes(x)[:first]
    rows = ctx.reshape(x, [*leading, math.prod(lengths)])
    gathered = ctx.net.add_gather(rows, ctx.constant(flat), first).get_output(0)
    layer = ctx.net.add_topk(gathered, trt.TopKOperation.MAX, 1, 1 << (first + 1))
    values, place = layer.get_output(0), ctx.cast(layer.get_output(1), torch.int64)
    base = (torch.arange(flat.shape[0]) * flat.shape[1])[:, None]
    at = combine(ctx, "SUM", place, base)
    positions = ctx.net.add_gather(ctx.constant(flat.flatten()), at, 0).get_output(0)
    sizes = [*leading, *(len(starts) for starts, _ in parts)]
    return ctx.reshape(values, sizes), ctx.cast(ctx.reshape(positions, sizes), torch.int64)
