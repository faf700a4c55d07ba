"""IPoolingLayer: maximum, average, and a blend of both."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from builder.engine import ILayer
from builder.reference.dtypes import in_float32
from builder.reference.layers.padding import Pads, torch_pads, window_padding
from builder.reference.registry import evaluates

MAXIMUM = {axes: getattr(functional, f"max_pool{axes}d") for axes in (1, 2, 3)}
AVERAGE = {axes: getattr(functional, f"avg_pool{axes}d") for axes in (1, 2, 3)}


@evaluates("POOLING")
@in_float32
def pooling(layer: ILayer, x: Tensor) -> Tensor:
    """Pool x, which has axes N, C and spatial axes.

    The blend is (1 - blend_factor) * maximum + blend_factor * average.
    """
    window = list(layer.window_size_nd)
    stride = list(layer.stride_nd)
    pads, excess = window_padding(layer, list(x.shape[2:]), window, stride)
    kind = layer.type.name
    if kind == "MAX":
        return _maximum(x, window, stride, pads, excess)
    average = _average(
        x, window, stride, pads, excess, layer.average_count_excludes_padding
    )
    if kind == "AVERAGE":
        return average
    blend: float = layer.blend_factor
    return (1 - blend) * _maximum(x, window, stride, pads, excess) + blend * average


def _maximum(
    x: Tensor, window: list[int], stride: list[int], pads: Pads, excess: Pads
) -> Tensor:
    """The maximum of each window. Padding has the lowest value, so it is never the maximum."""
    lowest = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    padded = functional.pad(
        functional.pad(x, torch_pads(pads), value=lowest),
        torch_pads(excess),
        value=lowest,
    )
    result: Tensor = MAXIMUM[len(window)](padded, window, stride)
    return result


def _average(
    x: Tensor,
    window: list[int],
    stride: list[int],
    pads: Pads,
    excess: Pads,
    excludes: bool,
) -> Tensor:
    """The average of each window, divided by its overlap with the input, or with the padded input.
    Elements beyond the padding are not counted.
    """
    inside = torch.ones(1, 1, *x.shape[2:])
    inside = functional.pad(inside, torch_pads(pads), value=0.0 if excludes else 1.0)
    total, count = (
        _sum(functional.pad(tensor, torch_pads(excess)), window, stride)
        for tensor in (functional.pad(x, torch_pads(pads)), inside)
    )
    return total / count


def _sum(x: Tensor, window: list[int], stride: list[int]) -> Tensor:
    volume = math.prod(window)
    result: Tensor = AVERAGE[len(window)](x.float(), window, stride) * volume
    return result
