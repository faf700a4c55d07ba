"""Layers along axes: reductions, softmax, top-k and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import REDUCED, axes_of, in_float32, output_dtype
from builder.reference.registry import evaluates

Axes = tuple[int, ...]
Reduction = Callable[[Tensor, Axes], Tensor]


def _product(x: Tensor, axes: Axes) -> Tensor:
    for axis in axes:
        x = x.prod(axis, keepdim=True, dtype=x.dtype)
    return x


def _average(x: Tensor, axes: Axes) -> Tensor:
    """The mean. Integer results are truncated. The mean of no elements is NaN; 0 for integers, -128
    for int8.
    """
    if x.is_floating_point():
        return x.mean(axes, keepdim=True)
    total = x.sum(axes, keepdim=True)
    if x.dtype == torch.int8 and not _volume(x, axes):
        return total - 128
    return torch.div(total, max(_volume(x, axes), 1), rounding_mode="trunc")


def _extreme(
    best: Callable[..., Tensor], of_nothing: Callable[[torch.dtype], float]
) -> Callable[[Tensor, Axes], Tensor]:
    def reduce(x: Tensor, axes: Axes) -> Tensor:
        if _volume(x, axes):
            return best(x, axes, keepdim=True)
        shape = list(x.shape)
        for axis in axes:
            shape[axis] = 1
        return x.new_full(shape, of_nothing(x.dtype))

    return reduce


def _volume(x: Tensor, axes: Axes) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def _lowest(dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return -torch.inf
    return torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> float:
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max


REDUCTIONS: dict[str, Reduction] = {
    "SUM": lambda x, axes: x.sum(axes, keepdim=True, dtype=x.dtype),
    "PROD": _product,
    "MAX": _extreme(torch.amax, _lowest),
    "MIN": _extreme(torch.amin, _highest),
    "AVG": _average,
    "NONE": lambda x, axes: x,
}


@evaluates("REDUCE")
@in_float32
def reduce(layer: ILayer, x: Tensor) -> Tensor:
    """`op` over the axes of the mask, in x's dtype. MAX and MIN of no elements are the dtype's
    infinities or limits.
    """
    axes = axes_of(layer.axes)
    reduced = REDUCTIONS[layer.op.name](x, axes).to(x.dtype)
    if layer.keep_dims or layer.op.name == "NONE":
        return reduced
    return reduced.reshape(
        [size for axis, size in enumerate(x.shape) if axis not in axes]
    )


@evaluates("SOFTMAX")
@in_float32
def softmax(layer: ILayer, x: Tensor) -> Tensor:
    """exp(x) divided by its sum along the only axis of the mask."""
    (axis,) = axes_of(layer.axes)
    return torch.softmax(x, axis)


@evaluates("TOPK")
def topk(layer: ILayer, x: Tensor, k: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k largest (smallest) values along the mask's only axis, best first, and their indices.

    TensorRT does not specify the order of equal values; here the lower index is first.
    """
    (axis,) = axes_of(layer.axes)
    count = layer.k if k is None else int(k)
    if count > x.shape[axis]:
        raise ValueError(f"k is {count}, the axis has {x.shape[axis]}")
    values, positions = torch.sort(
        x, dim=axis, descending=layer.op.name == "MAX", stable=True
    )
    return values.narrow(axis, 0, count), positions.narrow(axis, 0, count).to(
        output_dtype(layer, 1)
    )


@evaluates("CUMULATIVE")
def cumulative(layer: ILayer, x: Tensor, axis: Tensor) -> Tensor:
    """Cumulative sums of x along the axis, including or excluding each element itself, from the
    start or from the end.
    """
    along = int(axis) % x.dim()
    wide = x.float() if x.dtype in REDUCED else x
    ordered = wide.flip(along) if layer.reverse else wide
    sums = ordered.cumsum(along, dtype=wide.dtype)
    if layer.exclusive:
        sums = torch.cat(
            [torch.zeros_like(sums.narrow(along, 0, min(1, sums.shape[along]))), sums],
            along,
        )
        sums = sums.narrow(along, 0, x.shape[along])
    return (sums.flip(along) if layer.reverse else sums).to(x.dtype)
