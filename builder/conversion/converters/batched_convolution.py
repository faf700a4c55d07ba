"""Convolutions whose weight or groups have sizes that are known only when the engine runs. In
StyleGAN2, every image has its own kernel: the images are the groups of one convolution.

TensorRT's layer takes constant sizes. Here it becomes a matrix product for each group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.linear import add, matmul
from builder.conversion.converters.padding import padded
from builder.conversion.converters.windows import col2im, im2col, reach, window_count
from builder.conversion.dynamic import Size, same_size
from builder.conversion.spatial import with_unit
from builder.engine import ITensor

if TYPE_CHECKING:
    from builder.conversion.converters.convolution import Convolution


def convolve(ctx: ConversionContext, x: ITensor, kernel: Convolution) -> ITensor:
    """x (N, groups C, H, W) convolved with a kernel of one or two spatial axes.

    Raises Unconvertible for three spatial axes, for a kernel of dynamic length, and for sizes that
    may not fit: a trace has the groups of its sample.
    """
    if len(kernel.lengths) > 2 or -1 in kernel.lengths:
        raise Unconvertible(
            "a convolution with a weight of dynamic sizes needs one or two spatial axes, with"
            " static lengths in the weight"
        )
    if not _fits(ctx, x, kernel):
        raise Unconvertible(
            "the channels of a convolution are not known to fit its weight and groups"
        )
    method = _direct if kernel.extra is None else _transposed
    result = method(ctx, x, kernel.for_image(), with_unit(kernel.lengths, 1))
    if kernel.bias is None:
        return result
    bias = ctx.tensor(kernel.bias)
    return add(ctx, result, ctx.reshape(bias, [ctx.size(bias, 0), 1, 1]))


def _fits(ctx: ConversionContext, x: ITensor, kernel: Convolution) -> bool:
    """Whether the channels of x and the first axis of the weight are whole groups, for all sizes
    of a request.
    """
    first, second = (ctx.size(kernel.weight, axis) for axis in (0, 1))
    per_group = first // kernel.groups
    inputs = second if kernel.extra is None else per_group
    return same_size(first, per_group * kernel.groups) and same_size(
        ctx.size(x, 1), inputs * kernel.groups
    )


def _direct(
    ctx: ConversionContext, x: ITensor, kernel: Convolution, lengths: list[int]
) -> ITensor:
    """weight (groups, K, C kh kw) @ windows (N, groups, C kh kw, H' W')"""
    weight = ctx.tensor(kernel.weight)
    maps, channels = ctx.sizes(weight)[:2]
    (top, left), (bottom, right) = kernel.before, kernel.after
    x = padded(ctx, x, [left, right, top, bottom], "constant")
    batch, _, height, width = ctx.sizes(x)
    images = ctx.reshape(x, [batch * kernel.groups, channels, height, width])
    windows = im2col(ctx, images, lengths, kernel.dilation, [0, 0], kernel.stride)
    inner, positions = ctx.sizes(windows)[1:]
    columns = ctx.reshape(windows, [batch, kernel.groups, inner, positions])
    rows = ctx.reshape(weight, [kernel.groups, maps // kernel.groups, inner])
    counts = [
        window_count(ctx, length, lengths[i], kernel.dilation[i], kernel.stride[i])
        for i, length in enumerate((height, width))
    ]
    return ctx.reshape(matmul(ctx, rows, columns), [batch, maps, *counts])


def _transposed(
    ctx: ConversionContext, x: ITensor, kernel: Convolution, lengths: list[int]
) -> ITensor:
    """weight (groups, K kh kw, C) @ x (N, groups, C, H W): windows, which overlap in the result"""
    weight = ctx.tensor(kernel.weight)
    channels, maps = ctx.size(weight, 0) // kernel.groups, ctx.size(weight, 1)
    batch, _, height, width = ctx.sizes(x)
    values = maps * (lengths[0] * lengths[1])
    rows = ctx.permute(
        ctx.reshape(weight, [kernel.groups, channels, values]), [0, 2, 1]
    )
    columns = ctx.reshape(x, [batch, kernel.groups, channels, height * width])
    windows = ctx.reshape(
        matmul(ctx, rows, columns), [batch * kernel.groups, values, height * width]
    )
    sizes = [
        _result_length(kernel, lengths, i, size)
        for i, size in enumerate((height, width))
    ]
    images = col2im(
        ctx, windows, sizes, lengths, kernel.dilation, kernel.before, kernel.stride
    )
    return ctx.reshape(images, [batch, kernel.groups * maps, *sizes])


def _result_length(
    kernel: Convolution, lengths: list[int], axis: int, size: Size
) -> Any:
    """The length of a spatial axis of a transposed convolution's result."""
    extra = kernel.extra or [0, 0]
    cropped = kernel.before[axis] + kernel.after[axis]
    whole = reach(size, lengths[axis], kernel.dilation[axis], kernel.stride[axis])
    return whole + (extra[axis] - cropped)
