"""Normalizations: one IScaleLayer or INormalizationLayer if possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import Size
from builder.conversion.folding import channel_scale, folded
from builder.conversion.layers import accumulated, combine, half_as_float32, reduce
from builder.conversion.registry import converter
from builder.conversion.values import Tensor
from builder.engine import ITensor, trt
from builder.graph_types import Node


@converter("aten::batch_norm")
def batch_norm(
    ctx: ConversionContext,
    node: Node,
    x: ITensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
) -> ITensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with running or batch statistics"""
    if training or running_mean is None:
        axes = [axis for axis in range(ctx.rank(x)) if axis != 1]
        return affine(ctx, standardized(ctx, x, axes, eps)[0], weight, bias)
    into_convolution = folded(ctx, node, x)
    if into_convolution is not None:
        return into_convolution
    return by_running_statistics(ctx, x, weight, bias, running_mean, running_var, eps)


@converter(
    "aten::native_batch_norm",
    when=lambda ctx, a: (
        "training updates the running statistics"
        if a.training and a.running_mean is not None
        else None
    ),
)
def native_batch_norm(
    ctx: ConversionContext,
    x: ITensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
) -> Any:
    """batch_norm, and while training the batch's mean and 1 / sqrt(variance + eps); empty tensors
    otherwise
    """
    if not training:
        return (
            by_running_statistics(ctx, x, weight, bias, running_mean, running_var, eps),
            torch.empty(0),
            torch.empty(0),
        )
    axes = [axis for axis in range(ctx.rank(x)) if axis != 1]
    result, average, inverse = standardized(ctx, x, axes, eps)
    return (
        affine(ctx, result, weight, bias),
        ctx.squeeze(average, axes),
        ctx.squeeze(inverse, axes),
    )


def by_running_statistics(
    ctx: ConversionContext,
    x: ITensor,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    eps: float,
) -> ITensor:
    """One scale and shift for each channel, computed in float64 if all operands are static."""
    coefficients = [
        tensor for tensor in (weight, bias, mean, variance) if tensor is not None
    ]
    if not all(isinstance(tensor, torch.Tensor) for tensor in coefficients):
        deviation = ctx.unary("SQRT", combine(ctx, "SUM", ctx.tensor(variance), eps))
        centered = combine(ctx, "SUB", x, per_channel(ctx, mean, x, 1))
        normal = combine(ctx, "DIV", centered, per_channel(ctx, deviation, x, 1))
        return affine(ctx, normal, weight, bias)
    return scaled(ctx, x, *channel_scale(weight, bias, mean, variance, eps=eps))


def scaled(
    ctx: ConversionContext, x: ITensor, scale: torch.Tensor, shift: torch.Tensor
) -> ITensor:
    """x * scale + shift for each channel (axis 1): one IScaleLayer, which requires two axes after
    the channel axis.
    """
    dtype = ctx.dtype(x)
    rank = ctx.rank(x)
    if rank not in (4, 5):
        shape = [-1] + [1] * (rank - 2)
        product = combine(ctx, "PROD", x, scale.to(dtype).reshape(shape))
        return combine(ctx, "SUM", product, shift.to(dtype).reshape(shape))
    weights = [
        ctx.weights.of(tensor.to(dtype).contiguous()) for tensor in (shift, scale)
    ]
    layer = ctx.net.add_scale_nd(
        x, trt.ScaleMode.CHANNEL, *weights, trt.Weights(weights[0].dtype), 1
    )
    return layer.get_output(0)


def per_channel(ctx: ConversionContext, t: Tensor, x: ITensor, axis: int) -> Any:
    """A vector shaped to multiply along `axis` of x."""
    sizes = [-1] + [1] * (ctx.rank(x) - axis - 1)
    if isinstance(t, torch.Tensor):
        return t.reshape(sizes)
    return ctx.reshape(t, [ctx.size(t, 0), *sizes[1:]])


def affine(
    ctx: ConversionContext,
    x: ITensor,
    weight: Tensor | None,
    bias: Tensor | None,
    at: int = 1,
) -> ITensor:
    """x * weight + bias; each may be None. They are vectors along the axis `at`, or, if it is -1,
    broadcast from the last axis.
    """
    for operation, t in (("PROD", weight), ("SUM", bias)):
        if t is not None:
            factor = per_channel(ctx, t, x, at) if at >= 0 else t
            x = combine(ctx, operation, x, factor)
    return x


@half_as_float32
def standardized(
    ctx: ConversionContext, x: ITensor, axes: Sequence[int], eps: float
) -> tuple[Any, Any, Any]:
    """(x - mean) / sqrt(variance + eps), mean and 1 / sqrt(variance + eps), over `axes` in two
    passes, all in x's dtype.
    """
    mean = reduce(ctx, "AVG", x, axes, keepdim=True)
    centered = combine(ctx, "SUB", x, mean)
    variance = reduce(
        ctx, "AVG", combine(ctx, "PROD", centered, centered), axes, keepdim=True
    )
    inverse = ctx.unary("RECIP", ctx.unary("SQRT", combine(ctx, "SUM", variance, eps)))
    return combine(ctx, "PROD", centered, inverse), mean, inverse


@converter("aten::instance_norm")
def instance_norm(
    ctx: ConversionContext,
    x: ITensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    eps: float,
) -> Any:
    """Normalizes each channel of each sample, or uses the running statistics"""
    if not use_input_stats:
        return by_running_statistics(
            ctx, x, weight, bias, running_mean, running_var, eps
        )
    return normalized(ctx, x, list(range(2, ctx.rank(x))), weight, bias, 1, eps)


def normalized(
    ctx: ConversionContext,
    x: ITensor,
    axes: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    at: int,
    eps: float,
) -> Any:
    """INormalizationLayer over `axes`, then weight and bias along axis `at`, or (at < 0) of the
    shape of the axes.
    """
    rank = ctx.rank(x)
    scale = coefficient(ctx, weight, x, at)
    shift = coefficient(ctx, bias, x, at)
    if scale is None or shift is None or rank < 2:
        result, _, _ = standardized(ctx, x, axes, eps)
        return affine(ctx, result, weight, bias, at)
    return normalization_layer(ctx, x, scale, shift, axes, eps)


def coefficient(ctx: ConversionContext, t: Tensor | None, x: ITensor, at: int) -> Any:
    """The weight or bias as an ITensor of x's rank and dtype; None if it has another dtype."""
    dtype = ctx.dtype(x)
    rank = ctx.rank(x)
    if t is None:
        return None
    if not isinstance(t, torch.Tensor):
        if ctx.dtype(t) != dtype:
            return None
        if at >= 0:
            t = per_channel(ctx, t, x, at)
        return ctx.at_rank(t, rank)
    if at >= 0:
        trailing = [1] * (rank - at - 1)
        t = t.reshape([-1, *trailing])
    leading = [1] * (rank - t.dim())
    return ctx.constant(t.to(dtype).reshape([*leading, *t.shape]))


def normalization_layer(
    ctx: ConversionContext,
    x: ITensor,
    weight: ITensor,
    bias: ITensor,
    axes: Sequence[int],
    eps: float,
) -> Any:
    """One INormalizationLayer; its second version if available."""
    add = getattr(ctx.net, "add_normalization_v2", None) or ctx.net.add_normalization
    layer = add(x, weight, bias, sum(1 << axis for axis in axes))
    layer.epsilon = eps
    return ctx.copy_sizes(x, layer.get_output(0))


@converter("aten::layer_norm")
def layer_norm(
    ctx: ConversionContext,
    x: ITensor,
    normalized_shape: list[Size],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes, as many as
    normalized_shape has
    """
    axes = list(range(ctx.rank(x) - len(normalized_shape), ctx.rank(x)))
    static = [size for size in normalized_shape if isinstance(size, int)]
    if len(static) == len(normalized_shape):
        if weight is None:
            weight = torch.ones(static)
        if bias is None:
            bias = torch.zeros(static)
    return normalized(ctx, x, axes, weight, bias, -1, eps)


@converter("aten::native_layer_norm")
def native_layer_norm(
    ctx: ConversionContext,
    x: ITensor,
    normalized_shape: list[Size],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    """layer_norm, its mean and 1 / sqrt(variance + eps)"""
    axes = list(range(ctx.rank(x) - len(normalized_shape), ctx.rank(x)))
    result, mean, inverse = standardized(ctx, x, axes, eps)
    return affine(ctx, result, weight, bias, -1), mean, inverse


@converter(
    "aten::group_norm",
    when=lambda ctx, a: (
        None
        if isinstance(ctx.size(a.input, 1), int)
        else "the channels (axis 1) must be static"
    ),
)
def group_norm(
    ctx: ConversionContext,
    x: ITensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> ITensor:
    """Normalizes each group of channels of each sample"""
    channels = ctx.size(x, 1)
    assert isinstance(channels, int)
    if channels % num_groups:
        raise Unconvertible(
            f"{channels} channels do not divide into {num_groups} groups"
        )
    split = ctx.reshape(x, [ctx.size(x, 0), num_groups, -1])
    ones = ctx.constant(torch.ones(1, num_groups, 1, dtype=ctx.dtype(x)))
    zeros = ctx.constant(torch.zeros(1, num_groups, 1, dtype=ctx.dtype(x)))
    result = ctx.reshape(
        normalization_layer(ctx, split, ones, zeros, [2], eps), ctx.sizes(x)
    )
    return affine(ctx, result, weight, bias)


@converter("aten::rms_norm")
def rms_norm(
    ctx: ConversionContext,
    x: ITensor,
    normalized_shape: list[Size],
    weight: Tensor | None,
    eps: float | None,
) -> ITensor:
    """x / sqrt(mean(x^2) + eps) * weight; half is computed in float32, as in PyTorch; the default
    eps is that of the dtype
    """
    dtype = ctx.dtype(x)
    wide = ctx.cast(x, torch.float32)
    axes = list(range(ctx.rank(x) - len(normalized_shape), ctx.rank(x)))
    mean = reduce(ctx, "AVG", combine(ctx, "PROD", wide, wide), axes, keepdim=True)
    root = ctx.unary(
        "SQRT",
        combine(
            ctx, "SUM", mean, torch.finfo(torch.float32).eps if eps is None else eps
        ),
    )
    result = combine(ctx, "DIV", wide, root)
    if weight is not None:
        result = combine(ctx, "PROD", result, weight)
    return ctx.cast(result, dtype if weight is None else ctx.promoted(x, weight))


@converter("aten::_weight_norm")
def weight_norm(ctx: ConversionContext, v: Tensor, g: Tensor, dim: int) -> ITensor:
    """v g / |v|, the norm over every axis but `dim` (over all where dim is -1)"""
    v = ctx.tensor(v)
    axis_of_norms = None
    if dim != -1:
        axis_of_norms = ctx.axis(v, dim)
    axes = [axis for axis in range(ctx.rank(v)) if axis != axis_of_norms]
    wide = accumulated(ctx, v)
    norm = ctx.unary(
        "SQRT", reduce(ctx, "SUM", combine(ctx, "PROD", wide, wide), axes, keepdim=True)
    )
    return combine(ctx, "PROD", v, combine(ctx, "DIV", g, ctx.cast(norm, ctx.dtype(v))))
