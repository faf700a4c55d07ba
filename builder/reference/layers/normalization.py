"""INormalizationLayer, ILRNLayer and IScaleLayer."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import axes_of, in_float32, weights_tensor
from builder.reference.registry import evaluates


@evaluates("NORMALIZATION")
@in_float32
def normalization(
    layer: ILayer, x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, computed in float32.

    Statistics are over the mask's axes, or over each of `num_groups` groups of channels and the
    following axes.
    """
    groups = layer.num_groups
    if groups == 1:
        normal = _normal(x, axes_of(layer.axes), layer.epsilon)
    else:
        batch, channels, *spatial = x.shape
        grouped = x.reshape(batch, groups, channels // groups, *spatial)
        axes = tuple(range(2, grouped.dim()))
        normal = _normal(grouped, axes, layer.epsilon).reshape(x.shape)
        scale = _per_channel(scale, groups, x.shape[1])
        bias = _per_channel(bias, groups, x.shape[1])
    if scale is not None:
        normal = normal * scale
    if bias is None:
        return normal
    return normal + bias


def _per_channel(
    coefficients: Tensor | None, groups: int, channels: int
) -> Tensor | None:
    """Coefficients per channel. Grouped coefficients are (1, G, 1, ...) in the first version of the
    layer, (1, C, 1, ...) in the second.
    """
    if coefficients is None or coefficients.shape[1] != groups:
        return coefficients
    return coefficients.repeat_interleave(channels // groups, dim=1)


def _normal(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon)


@evaluates("SCALE")
@in_float32
def scale(layer: ILayer, x: Tensor) -> Tensor:
    """(x * scale + shift)^power. Missing coefficients are 0 for shift and 1 for the others.
    Coefficients are single values, per channel or per element.
    """
    channel = layer.channel_axis
    shape = {
        "UNIFORM": [],
        "CHANNEL": [x.shape[channel]] + [1] * (x.dim() - channel - 1),
        "ELEMENTWISE": list(x.shape[channel:]),
    }[layer.mode.name]
    factor = weights_tensor(layer.scale, shape)
    shift = weights_tensor(layer.shift, shape)
    power = weights_tensor(layer.power, shape)
    if factor is not None:
        x = x * factor.to(x.dtype)
    if shift is not None:
        x = x + shift.to(x.dtype)
    if power is None:
        return x
    return torch.pow(x, power.to(x.dtype))
