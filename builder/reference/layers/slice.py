"""ISliceLayer: output[y] = input[y * stride + start] for each axis. SampleMode defines values out
of bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import along_axis
from builder.reference.registry import evaluates


@evaluates("SLICE")
def slice_(
    layer: ILayer,
    x: Tensor,
    start: Tensor | None = None,
    size: Tensor | None = None,
    stride: Tensor | None = None,
    fill: Tensor | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    """Slice x. Start, size, stride and axes each come from their input if set, else from the
    attribute.
    """
    # an attribute is only read if no input replaces it: otherwise TensorRT reports an error
    starts = _numbers(layer.start if start is None else start)
    sizes = _numbers(layer.shape if size is None else size)
    strides = _numbers(layer.stride if stride is None else stride)
    mode = layer.mode.name
    empty = None
    positions = _positions(layer, x.dim(), axes)
    for axis, first, count, step in zip(positions, starts, sizes, strides, strict=True):
        if _inside(first, count, step, x.shape[axis]):
            x = _slice_axis(x, axis, first, count, step)
            continue
        index = torch.arange(count) * step + first
        outside = (index < 0) | (index >= x.shape[axis])
        empty = _mark(empty, outside, axis, x.dim())
        if x.shape[axis]:
            x = x.index_select(axis, _WRAPPERS[mode](index, x.shape[axis]))
        else:
            x = _lengthen(x, axis, count)
    if empty is None or mode != "FILL":
        return x
    return _filled(x, empty, fill)


def _positions(layer: ILayer, rank: int, axes: Tensor | None) -> list[int]:
    """The sliced axes, from 0 to rank - 1."""
    if axes is None:
        axes = getattr(layer, "axes", None)
    if axes is None:
        return list(range(rank))
    return [axis % rank for axis in _numbers(axes)]


def _numbers(values: Iterable[Any]) -> list[int]:
    return [int(value) for value in values]


def _inside(first: int, count: int, step: int, length: int) -> bool:
    last = first + (count - 1) * step
    return count == 0 or (min(first, last) >= 0 and max(first, last) < length)


def _slice_axis(x: Tensor, axis: int, first: int, count: int, step: int) -> Tensor:
    """The elements of an axis if none is out of bounds. For positive steps this is a view."""
    if count == 0 or step <= 0:
        return x.index_select(axis, torch.arange(count) * step + first)
    last = first + (count - 1) * step
    return x[(slice(None),) * axis + (slice(first, last + 1, step),)]


def _strict(index: Tensor, length: int) -> Tensor:
    raise ValueError(
        f"coordinates {int(index.min())}..{int(index.max())} are out of bounds of an axis of"
        f" {length}"
    )


def _reflect(index: Tensor, length: int) -> Tensor:
    """Reflect indices: c = |x| mod (2d - 2), and 2d - 2 - c if c is at least d. An axis with one
    element only has index 0.
    """
    if length == 1:
        return torch.zeros_like(index)
    period = 2 * length - 2
    folded = index.abs() % period
    return torch.where(folded >= length, period - folded, folded)


_WRAPPERS = {
    "STRICT_BOUNDS": _strict,
    "DEFAULT": _strict,
    "WRAP": lambda index, length: index % length,
    "CLAMP": lambda index, length: index.clamp(0, length - 1),
    "FILL": lambda index, length: index.clamp(0, length - 1),
    "REFLECT": _reflect,
}


def _mark(empty: Tensor | None, outside: Tensor, axis: int, rank: int) -> Tensor:
    """A mask of the coordinates that are out of bounds on any axis so far, broadcastable to the
    output.
    """
    mask = along_axis(outside, axis, rank)
    if empty is None:
        return mask
    return empty | mask


def _lengthen(x: Tensor, axis: int, count: int) -> Tensor:
    """An empty axis extended to `count` elements. FILL overwrites all of them; WRAP and the other
    modes have no elements to use.
    """
    shape = list(x.shape)
    shape[axis] = count
    return x.new_zeros(shape)


def _filled(x: Tensor, empty: Tensor, fill: Tensor | None) -> Tensor:
    value = (
        torch.zeros((), dtype=x.dtype) if fill is None else fill.reshape(()).to(x.dtype)
    )
    return torch.where(empty, value, x)
