"""INormalizationLayer: (x - mean) / sqrt(variance + epsilon) * scale + bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from builder.reference.dtypes import axes_of, in_float32
from builder.reference.registry import evaluates


@evaluates("NORMALIZATION")
@in_float32
def normalization(layer: Any, x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Statistics over the mask's axes, or over each of `num_groups` groups of channels and the axes after them."""
    groups = layer.num_groups
    if groups == 1:
        normal = _normal(x, axes_of(layer.axes), layer.epsilon)
    else:
        grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
        normal = _normal(grouped, tuple(range(2, grouped.dim())), layer.epsilon).reshape(x.shape)
        scale, bias = (_per_channel(t, groups, x.shape[1]) for t in (scale, bias))
    normal = normal if scale is None else normal * scale
    return normal if bias is None else normal + bias


def _per_channel(coefficients: Tensor | None, groups: int, channels: int) -> Tensor | None:
    """Of grouped normalisation, the first version takes coefficients of (1, G, 1, ...), the second of (1, C, 1, ...)."""
    if coefficients is None or coefficients.shape[1] != groups:
        return coefficients
    return coefficients.repeat_interleave(channels // groups, dim=1)


def _normal(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon)
