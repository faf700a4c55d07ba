"""One pooling with PyTorch's semantics: its settings, its number of windows, and its
IPoolingLayer.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import Size, bounds
from builder.conversion.spatial import filled, note_spatial, windows, with_unit
from builder.conversion.values import PerAxis
from builder.engine import ITensor, trt


@dataclass(frozen=True)
class Pool:
    """The settings of one pooling, one number for each spatial axis. An empty stride is the window
    size.
    """

    window: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil: bool

    @staticmethod
    def of(
        axes: int,
        window: PerAxis,
        stride: PerAxis,
        padding: PerAxis,
        dilation: PerAxis,
        ceil: bool = False,
    ) -> Pool:
        """From PyTorch's arguments, with the unit axis that one-dimensional pooling gets."""
        sizes = filled(window, axes)
        steps = sizes
        if stride not in ([], None):
            steps = filled(stride, axes)
        pads = filled(padding, axes)
        spread = filled(dilation, axes)
        return Pool(
            with_unit(sizes, 1),
            with_unit(steps, 1),
            with_unit(pads, 0),
            with_unit(spread, 1),
            ceil,
        )

    def reach(self, axis: int) -> int:
        """The number of elements that one window spans."""
        return self.dilation[axis] * (self.window[axis] - 1) + 1


def output_length(ctx: ConversionContext, pool: Pool, axis: int, length: Size) -> Size:
    """PyTorch's number of windows. With ceil_mode, a window that starts in the trailing padding is
    dropped.
    """
    span = pool.reach(axis)
    step = pool.stride[axis]
    pad = pool.padding[axis]
    rounding = step - 1 if pool.ceil else 0
    last_start = length + (2 * pad - span + rounding)
    if step != 1:
        last_start //= step
    count = last_start + 1
    if not pool.ceil or pad + step <= span:
        # the last window then always starts within the input
        return count
    starting = (length + (pad - 1)) // step + 1
    return ctx.minimum(count, starting)  # type: ignore[no-any-return]


def may_drop(pool: Pool) -> list[int]:
    """The axes along which rounding up may add a window that starts in the trailing padding."""
    return [
        axis
        for axis, length in enumerate(pool.window)
        if pool.ceil and pool.padding[axis] + pool.stride[axis] > pool.reach(axis)
    ]


def is_global(ctx: ConversionContext, x: ITensor, pool: Pool) -> bool:
    """Whether rounding up leaves one window, which covers all spatial axes at every size. TensorRT
    refuses large windows, and networks use them for images of any size.
    """
    if not pool.ceil or any(pool.padding) or any(step != 1 for step in pool.dilation):
        return False
    spans = [
        bounds(ctx.expr(x, axis + 2), ctx.ranges()) for axis in range(len(pool.window))
    ]
    return all(
        span is not None and span[1] <= window
        for span, window in zip(spans, pool.window, strict=True)
    )


def pooled(
    ctx: ConversionContext, x: ITensor, kind: str, pool: Pool, counted: str = "inside"
) -> ITensor:
    """One IPoolingLayer over (N, C, spatial); windows that PyTorch drops are sliced off.

    `counted` is the divisor of an average: the elements "inside" the input, those of the "padded"
    input, or the whole "window".
    """
    layer = ctx.net.add_pooling_nd(
        x, getattr(trt.PoolingType, kind), trt.Dims(pool.window)
    )
    layer.stride_nd = trt.Dims(pool.stride)
    layer.pre_padding = trt.Dims(pool.padding)
    whole = counted == "window" and pool.ceil
    after = list(pool.padding)
    if whole:
        after = [
            padding + stride - 1
            for padding, stride in zip(pool.padding, pool.stride, strict=True)
        ]
    layer.post_padding = trt.Dims(after)
    up = pool.ceil and not whole and not _all_dropped(pool, x)
    layer.padding_mode = getattr(
        trt.PaddingMode, "EXPLICIT_ROUND_UP" if up else "EXPLICIT_ROUND_DOWN"
    )
    if kind == "AVERAGE":
        layer.average_count_excludes_padding = counted == "inside"
    y = layer.get_output(0)

    def length(i: int, size: sympy.Expr) -> sympy.Expr:
        return windows(
            size, pool.padding[i] + after[i], pool.window[i], pool.stride[i], up
        )

    return _without_dropped(ctx, note_spatial(ctx, x, y, length), x, pool)


def _all_dropped(pool: Pool, x: ITensor) -> bool:
    """Whether rounding down gives PyTorch's length on every axis, so that no slice is needed."""
    for axis, length in enumerate(x.shape[2:]):
        if length < 0:
            return False
        padding = pool.padding[axis]
        stride = pool.stride[axis]
        last_start = length + 2 * padding - pool.window[axis]
        down = last_start // stride
        up = -(-last_start // stride)
        if up != down and up * stride < length + padding:
            return False
    return True


def _without_dropped(
    ctx: ConversionContext, y: ITensor, x: ITensor, pool: Pool
) -> ITensor:
    """Slice off the windows that TensorRT has and PyTorch drops, because they start in the
    padding.
    """
    lengths = {
        axis + 2: output_length(ctx, pool, axis, ctx.size(x, axis + 2))
        for axis in may_drop(pool)
    }
    if all(y.shape[axis] == size for axis, size in lengths.items()):
        return y
    sizes = [lengths.get(axis, ctx.size(y, axis)) for axis in range(ctx.rank(y))]
    return ctx.slice(y, [0] * len(sizes), sizes)
