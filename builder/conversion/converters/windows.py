"""Sliding windows: Tensor.unfold, im2col (nn.Unfold) and col2im (nn.Fold)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.converters.padding import padded
from builder.conversion.dynamic import Size
from builder.conversion.evaluators.creation import counted
from builder.conversion.layers import gathered
from builder.conversion.registry import converter
from builder.engine import ITensor, trt


@converter("aten::unfold")
def unfold(
    ctx: ConversionContext, x: ITensor, dimension: int, size: int, step: int
) -> ITensor:
    """All windows of `size` values of one axis, `step` apart; the window's elements are the last
    axis.
    """
    if ctx.rank(x) == 0:
        return ctx.reshape(x, [1])
    axis = ctx.axis(x, dimension)
    windows = _windows(ctx, ctx.size(x, axis), size, 1, step)
    order = list(range(ctx.rank(x) + 1))
    order.append(order.pop(axis + 1))
    return ctx.permute(gathered(ctx, x, windows, axis), order)


def _windows(
    ctx: ConversionContext, length: Size, kernel: int, dilation: int, stride: int
) -> Any:
    """[windows, kernel]: the indices that each window reads."""
    inside = torch.arange(kernel) * dilation
    count = window_count(ctx, length, kernel, dilation, stride)
    if isinstance(count, int):
        return (torch.arange(count) * stride)[:, None] + inside
    first = ctx.unsqueeze(counted(ctx, 0, stride, count, torch.int64), [1])
    result = ctx.elementwise(
        "SUM", *ctx.operands(first, inside[None], dtype=torch.int64)
    )
    return ctx.set_sizes(result, [count, kernel])


def window_count(
    ctx: ConversionContext, length: Size, kernel: int, dilation: int, stride: int
) -> Size:
    """(length - dilation * (kernel - 1) - 1) // stride + 1"""
    span = length - (dilation * (kernel - 1) + 1)
    return span // stride + 1


@converter("aten::im2col")
def im2col(
    ctx: ConversionContext,
    x: ITensor,
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> ITensor:
    """[N, C, H, W] -> [N, C kh kw, windows]: two gathers, exact for every value, including
    infinities.
    """
    lead = ctx.rank(x) - 3
    height, width = padding
    x = padded(ctx, x, [width, width, height, height], "constant")
    for axis in (1, 0):
        windows = _windows(
            ctx,
            ctx.size(x, lead + 1 + axis),
            kernel_size[axis],
            dilation[axis],
            stride[axis],
        )
        # [.., oh, kh, ow, kw] when both are done
        x = gathered(ctx, x, windows, lead + 1 + axis)
    order = [*range(lead + 1), lead + 2, lead + 4, lead + 1, lead + 3]
    x = ctx.permute(x, order)
    sizes = ctx.sizes(x)
    *front, channels, high, wide, rows, columns = sizes
    values = channels * high * wide
    positions = rows * columns
    return ctx.reshape(x, [*front, values, positions])


def _floating(ctx: ConversionContext, args: SimpleNamespace) -> str | None:
    """floating tensors with a static number of channels"""
    if not ctx.dtype(args.self).is_floating_point:
        return "col2im of integers: TensorRT's deconvolution supports only floating-point tensors"
    channels = args.self.shape[ctx.rank(args.self) - 2]
    return "col2im with a dynamic number of channels" if channels < 0 else None


@converter("aten::col2im", when=_floating)
def col2im(
    ctx: ConversionContext,
    x: ITensor,
    output_size: list[Size],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> ITensor:
    """[N, C kh kw, windows] -> [N, C, H, W], overlaps are added, by a deconvolution."""
    *lead, columns, _ = ctx.sizes(x)
    counts = [
        window_count(
            ctx,
            output_size[i] + 2 * padding[i],
            kernel_size[i],
            dilation[i],
            stride[i],
        )
        for i in (0, 1)
    ]
    images = ctx.reshape(x, [*(lead or [1]), columns, *counts])
    whole = _placed(ctx, images, kernel_size, dilation, stride)
    column_pads = _crop_or_pad(ctx, output_size[1], ctx.size(whole, 3), padding[1])
    row_pads = _crop_or_pad(ctx, output_size[0], ctx.size(whole, 2), padding[0])
    result = padded(ctx, whole, [*column_pads, *row_pads], "constant")
    if lead:
        return result
    return ctx.squeeze(result, [0])


def _crop_or_pad(
    ctx: ConversionContext, requested: Size, whole: Size, padding: int
) -> tuple[Size, Size]:
    """Crop the padding at the start; at the end, crop or pad to the requested size."""
    return -padding, requested + padding - whole


def _placed(
    ctx: ConversionContext,
    images: ITensor,
    kernel: list[int],
    dilation: list[int],
    stride: list[int],
) -> ITensor:
    channels = images.shape[1] // (kernel[0] * kernel[1])
    weight = (
        _one_position_each(kernel, dilation)
        .to(ctx.dtype(images))
        .repeat(channels, 1, 1, 1)
    )
    window = list(weight.shape[2:])
    weights = (ctx.weights.of(weight), ctx.weights.of(None))
    layer = ctx.net.add_deconvolution_nd(images, channels, trt.Dims(window), *weights)
    layer.stride_nd = trt.Dims(stride)
    layer.num_groups = channels
    lengths = [
        reach(ctx.size(images, 2 + i), kernel[i], dilation[i], stride[i])
        for i in (0, 1)
    ]
    return ctx.set_sizes(layer.get_output(0), [ctx.size(images, 0), channels, *lengths])


def _one_position_each(kernel: list[int], dilation: list[int]) -> torch.Tensor:
    """[kh kw, 1, h, w]: window i has a one at position i. Zeros between them represent the
    dilation, which TensorRT does not support together with a stride.
    """
    inside = kernel[0] * kernel[1]
    spread = torch.zeros(
        inside, 1, *(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    )
    spread[:, :, :: dilation[0], :: dilation[1]] = torch.eye(inside).reshape(
        inside, 1, *kernel
    )
    return spread


def reach(count: Size, kernel: int, dilation: int, stride: int) -> Size:
    """The length that `count` windows cover: (count - 1) * stride + dilation * (kernel - 1) + 1"""
    steps = (count - 1) * stride
    return steps + (dilation * (kernel - 1) + 1)
