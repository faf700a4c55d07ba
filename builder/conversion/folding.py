"""Fold batch normalization with running statistics into the weights of the convolution before it.

TensorRT also folds such a scale layer. Folding here leaves one layer less between fusions, and the
weights are scaled in float64 and rounded to half only once.
"""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.engine import ITensor, trt
from builder.graph_types import Node, Value

_CONVOLUTIONS = frozenset(
    f"aten::{name}" for name in ("_convolution", "conv1d", "conv2d", "conv3d")
)
_TRANSPOSED = 6
"""The index of `transposed` in the arguments of aten::_convolution."""


def folded(ctx: ConversionContext, node: Node, x: ITensor) -> ITensor | None:
    """Fold the batch normalization `node` into the convolution that computed x, and return x.
    Returns None without a change if that is not possible: the convolution must be the network's
    last layer with no other user, and all weights static and of one dtype.
    """
    layer = _last_layer(ctx)
    if layer is None or layer.get_output(0).name != x.name or not reads_alone(node):
        return None
    convolution = node.inputsAt(0).node()
    weight = _static(ctx, convolution.inputsAt(1))
    bias = _static(ctx, convolution.inputsAt(2))
    statistics: list[Any] = [_static(ctx, node.inputsAt(i)) for i in range(1, 5)]
    if (
        weight is None
        or (bias is None and not _is_none(ctx, convolution.inputsAt(2)))
        or statistics[2] is None
    ):
        return None
    for index, statistic in enumerate(statistics, 1):
        if statistic is None and not _is_none(ctx, node.inputsAt(index)):
            return None
    scale, shift = channel_scale(
        *statistics, eps=ctx.values[node.inputsAt(7).debugName()]
    )
    offset = shift
    if bias is not None:
        offset = shift + bias.double() * scale
    dtype = ctx.dtype(x)
    layer.kernel = ctx.weights.of(scaled_weight(weight, scale, dtype))
    layer.bias = ctx.weights.of(offset.to(dtype))
    return x


def scaled_weight(
    weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Each channel of the weight (its first axis) times its scale, rounded once to `dtype`. A few
    channels at a time, to avoid a large float64 copy of the weights.
    """
    result = torch.empty(weight.shape, dtype=dtype)
    channels = max(2**18 // max(weight[0].numel(), 1), 1)
    factors = scale.reshape(-1, *[1] * (weight.dim() - 1))
    for first in range(0, weight.shape[0], channels):
        rows = slice(first, first + channels)
        result[rows] = weight[rows].double() * factors[rows]
    return result


def channel_scale(
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    *,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and shift of each channel for normalization by running statistics, in float64."""
    scale = torch.rsqrt(variance.double() + eps) * (
        1 if weight is None else weight.double()
    )
    return scale, -mean.double() * scale + (0 if bias is None else bias.double())


def _last_layer(ctx: ConversionContext) -> Any:
    """The network's last layer, if it is a convolution with static weights."""
    index = ctx.net.num_layers - 1
    layer = None
    if index >= 0:
        layer = ctx.net.get_layer(index)
    if (
        layer is None
        or layer.type != trt.LayerType.CONVOLUTION
        or layer.num_inputs != 1
    ):
        return None
    layer.__class__ = trt.IConvolutionLayer  # get_layer returns the base class
    return layer


def reads_alone(node: Node) -> bool:
    """Whether the node's input comes from a convolution that is not transposed and has no other
    user.
    """
    source = node.inputsAt(0)
    producer = source.node()
    if producer.kind() not in _CONVOLUTIONS or len(source.uses()) != 1:
        return False
    return (
        producer.kind() != "aten::_convolution"
        or producer.inputsAt(_TRANSPOSED).toIValue() is False
    )


def _static(ctx: ConversionContext, value: Value) -> torch.Tensor | None:
    """The value of the model, before the precision policy rounds it."""
    static = ctx.values[value.debugName()]
    if isinstance(static, torch.Tensor):
        return static
    return None


def _is_none(ctx: ConversionContext, value: Value) -> bool:
    return ctx.values[value.debugName()] is None
