"""Convolutions: 1-D to 3-D, grouped, dilated, transposed. The weight is a constant or a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters import batched_convolution
from builder.conversion.converters.windows import reach
from builder.conversion.dynamic import Size
from builder.conversion.registry import converter
from builder.conversion.spatial import (
    as_image,
    filled,
    note_spatial,
    windows,
    with_unit,
)
from builder.conversion.values import PerAxis, Tensor
from builder.engine import ITensor, trt


@dataclass(frozen=True)
class Convolution:
    """A weight (K, C/groups, ...), or transposed (C, K/groups, ...), the bias, and the settings,
    one number for each spatial axis. `extra` is output_padding of a transposed convolution.
    """

    weight: Tensor
    bias: Tensor | None
    stride: list[int]
    before: list[int]
    after: list[int]
    dilation: list[int]
    groups: Size
    extra: list[int] | None = None

    def for_image(self) -> Convolution:
        """The same settings with at least two spatial axes, for an input of `as_image`."""
        return replace(
            self,
            stride=with_unit(self.stride, 1),
            before=with_unit(self.before, 0),
            after=with_unit(self.after, 0),
            dilation=with_unit(self.dilation, 1),
            extra=None if self.extra is None else with_unit(self.extra, 0),
        )

    @staticmethod
    def of(
        weight: Tensor,
        bias: Tensor | None,
        stride: int | Sequence[int],
        padding: PerAxis | str,
        dilation: PerAxis,
        groups: Size,
        extra: PerAxis | None = None,
    ) -> Convolution:
        """From PyTorch's arguments, where one number stands for all axes. The padding "valid" is
        none; "same" keeps the size at stride 1, with the odd padding element at the end.
        """
        axes = len(weight.shape) - 2  # an input may have no batch axis
        dilation = filled(dilation, axes)
        if isinstance(padding, str):
            is_same = padding == "same"
            totals = [
                step * (length - 1) if is_same else 0
                for step, length in zip(dilation, weight.shape[2:], strict=True)
            ]
            before = [total // 2 for total in totals]
            after = [total - total // 2 for total in totals]
        else:
            before, after = filled(padding, axes), filled(padding, axes)
        extra = None if extra is None else filled(extra, axes)
        return Convolution(
            weight, bias, filled(stride, axes), before, after, dilation, groups, extra
        )

    @property
    def lengths(self) -> list[int]:
        """The lengths of the kernel along the spatial axes."""
        return list(self.weight.shape[2:])


def floats(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    """Refuses integer inputs."""
    x = getattr(call, "input", None)
    dtype = ctx.dtype(call.self if x is None else x)
    if dtype.is_floating_point:
        return None
    return f"TensorRT convolves floating tensors only, the input is {dtype}"


DYNAMIC = (
    "groups or a weight of dynamic sizes become matrix products, whose windows need the memory of"
    " the input times the size of the kernel"
)


@converter(
    "aten::_convolution",
    "aten::_convolution.deprecated",
    "aten::convolution",
    "aten::convolution_overrideable",
    *(
        f"aten::conv{axes}d{by_name}"
        for axes in (1, 2, 3)
        for by_name in ("", ".padding")
    ),
    "aten::_convolution_mode",
    "aten::thnn_conv2d",
    "aten::slow_conv3d",
    when=floats,
    note=DYNAMIC,
)
def general(
    ctx: ConversionContext,
    x: ITensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: PerAxis,
    padding: PerAxis | str,
    dilation: PerAxis = 1,
    transposed: bool = False,
    output_padding: PerAxis = 0,
    groups: Size = 1,
) -> Any:
    """The convolution, with numbers or a name for its padding; flags that select kernels do not
    change the result
    """
    extra = output_padding if transposed else None
    kernel = Convolution.of(weight, bias, stride, padding, dilation, groups, extra)
    return convolve(ctx, x, kernel)


@converter(
    "aten::conv_transpose1d",
    "aten::conv_transpose2d.input",
    "aten::conv_transpose3d.input",
    when=floats,
    note=DYNAMIC,
)
def transposed(
    ctx: ConversionContext,
    x: ITensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: PerAxis,
    padding: PerAxis,
    output_padding: PerAxis,
    groups: Size,
    dilation: PerAxis,
) -> Any:
    """The transposed convolution"""
    kernel = Convolution.of(
        weight, bias, stride, padding, dilation, groups, output_padding
    )
    return convolve(ctx, x, kernel)


@converter("aten::_conv_depthwise2d", "aten::conv_depthwise3d", when=floats)
def depthwise(
    ctx: ConversionContext,
    x: ITensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: PerAxis,
    padding: PerAxis,
    dilation: PerAxis,
) -> Any:
    """Convolution with one group for each channel"""
    channels = ctx.size(x, 1 - len(weight.shape))
    kernel = Convolution.of(weight, bias, stride, padding, dilation, channels)
    return convolve(ctx, x, kernel)


def convolve(ctx: ConversionContext, x: ITensor, kernel: Convolution) -> Any:
    """x of (N,) C and spatial axes: one layer, or matrix products if sizes are dynamic."""
    image, undo = as_image(ctx, x, len(kernel.lengths))
    if _has_fixed_sizes(ctx, image, kernel):
        add = _direct if kernel.extra is None else _transposed
        return undo(add(ctx, image, kernel).get_output(0))
    return undo(batched_convolution.convolve(ctx, image, kernel))


def _has_fixed_sizes(ctx: ConversionContext, x: ITensor, kernel: Convolution) -> bool:
    """Whether TensorRT's layer takes this weight and these groups. Without groups, it takes the
    channels from the weight.
    """
    if -1 in tuple(kernel.weight.shape) or not isinstance(kernel.groups, int):
        return False
    grouped = kernel.groups > 1 or kernel.extra is not None
    return not grouped or isinstance(ctx.size(x, 1), int)


def _direct(ctx: ConversionContext, x: ITensor, kernel: Convolution) -> Any:
    maps = int(kernel.weight.shape[0])
    layer = _add(ctx, ctx.net.add_convolution_nd, x, maps, kernel)

    def length(i: int, size: Any) -> Any:
        if i >= len(kernel.lengths):
            return size
        reach = kernel.dilation[i] * (kernel.lengths[i] - 1) + 1
        return windows(
            size, kernel.before[i] + kernel.after[i], reach, kernel.stride[i]
        )

    note_spatial(ctx, x, layer.get_output(0), length)
    return layer


def _transposed(ctx: ConversionContext, x: ITensor, kernel: Convolution) -> Any:
    """Transposed convolution. Output padding reduces the cropping at the end; any excess is added
    as zeros at the end of the kernel, which append empty rows.
    """
    if any(step > 1 for step in kernel.dilation) and (
        isinstance(kernel.weight, torch.Tensor) or max(kernel.stride) > 1
    ):
        kernel = _spread(kernel)
    cropped = list(zip(kernel.after, kernel.extra or [], strict=True))
    missing = [max(extra - after, 0) for after, extra in cropped]
    after = [max(after - extra, 0) for after, extra in cropped]
    kernel = replace(kernel, weight=_lengthened(kernel.weight, missing), after=after)
    maps = int(kernel.weight.shape[1]) * kernel.groups
    layer = _add(ctx, ctx.net.add_deconvolution_nd, x, maps, kernel)

    def length(i: int, size: Any) -> Any:
        if i >= len(kernel.lengths):
            return size
        whole = reach(size, kernel.lengths[i], kernel.dilation[i], kernel.stride[i])
        return whole - kernel.before[i] - kernel.after[i]

    note_spatial(ctx, x, layer.get_output(0), length)
    return layer


def _spread(kernel: Convolution) -> Convolution:
    """Expand a dilated kernel by zeros: TensorRT has no deconvolution with stride and dilation"""
    weight = kernel.weight
    if not isinstance(weight, torch.Tensor):
        raise Unconvertible(
            "TensorRT has no deconvolution with stride and dilation, unless the weight is known at"
            " build time"
        )
    lengths = [
        step * (k - 1) + 1
        for step, k in zip(kernel.dilation, kernel.lengths, strict=True)
    ]
    spread = weight.new_zeros(*weight.shape[:2], *lengths)
    holes = tuple(slice(None, None, step) for step in (1, 1, *kernel.dilation))
    spread[holes] = weight
    return replace(kernel, weight=spread, dilation=[1] * len(lengths))


def _lengthened(weight: Tensor, missing: Sequence[int]) -> Any:
    if not any(missing):
        return weight
    if not isinstance(weight, torch.Tensor):
        raise Unconvertible(
            "output_padding greater than padding needs the weight at build time"
        )
    pads = []
    for count in reversed(missing):  # the last axis is first
        pads += [0, count]
    return torch.nn.functional.pad(weight, pads)


def _add(
    ctx: ConversionContext, method: Any, x: ITensor, maps: int, kernel: Convolution
) -> Any:
    """Add the layer. A static kernel or bias is passed as weights, a dynamic one as an input."""
    dtype = ctx.dtype(x)
    weight, bias = kernel.weight, kernel.bias
    shape = with_unit(kernel.lengths, 1)
    layer = method(
        x,
        maps,
        trt.Dims(shape),
        _weights(ctx, weight, dtype),
        _weights(ctx, bias, dtype),
    )
    settings = kernel.for_image()
    layer.stride_nd = trt.Dims(settings.stride)
    layer.pre_padding = trt.Dims(settings.before)
    layer.post_padding = trt.Dims(settings.after)
    layer.dilation_nd = trt.Dims(settings.dilation)
    layer.num_groups = kernel.groups
    if not isinstance(weight, torch.Tensor):
        is_1d = ctx.rank(weight) == 3
        layer.set_input(1, ctx.unsqueeze(weight, [3]) if is_1d else weight)
    if bias is not None and not isinstance(bias, torch.Tensor):
        layer.set_input(2, bias)
    return layer


def _weights(ctx: ConversionContext, value: Tensor | None, dtype: torch.dtype) -> Any:
    """A constant as weights. No weights for None and for a tensor that the network computes."""
    if isinstance(value, torch.Tensor):
        return ctx.weights.of(value.to(dtype))
    return trt.Weights()
