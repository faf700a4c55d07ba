"""Layers along one axis: reverse sequence, cumulative sum, padding of the last two axes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from builder.engine import ILayer
from builder.reference.dtypes import REDUCED
from builder.reference.registry import evaluates


@evaluates("REVERSE_SEQUENCE")
def reverse_sequence(layer: ILayer, x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first lengths[i] elements along `sequence_axis` of each slice along
    `batch_axis`.
    """
    along = layer.sequence_axis
    across = layer.batch_axis
    position = torch.arange(x.shape[along]).reshape(1, -1)
    lengths = lengths.long().reshape(-1, 1)
    index = torch.where(position < lengths, lengths - 1 - position, position)
    index = index if across < along else index.T
    shape = [1] * x.dim()
    shape[along] = x.shape[along]
    shape[across] = x.shape[across]
    return x.gather(along, index.reshape(shape).expand(x.shape))


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


@evaluates("PADDING")
def padding(layer: ILayer, x: Tensor) -> Tensor:
    """Zero padding of the last two axes. A negative amount trims."""
    (top, left), (bottom, right) = layer.pre_padding_nd, layer.post_padding_nd
    return functional.pad(x, (left, right, top, bottom))
