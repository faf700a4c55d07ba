"""Layers that read and write values at computed indices: IGatherLayer, IScatterLayer and
IOneHotLayer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import along_axis
from builder.reference.registry import evaluates


@evaluates("GATHER")
def gather(layer: ILayer, data: Tensor, indices: Tensor) -> Tensor:
    """Values of `data` at `indices`, by GatherMode: along an axis, element-wise, or by coordinate
    tuples.

    Values out of bounds are zero. A negative index counts from the end of an axis with a static
    length. For a dynamic axis TensorRT leaves it undefined, so a ValueError is raised.
    """
    static = tuple(layer.get_input(0).shape)
    batch = layer.num_elementwise_dims
    axis = layer.axis
    if layer.mode.name == "ND":
        return _gather_nd(data, indices, batch, static)
    index, outside = clamp_indices(indices, data.shape[axis], static[axis])
    if layer.mode.name == "ELEMENT":
        values = data.gather(axis, index)
        if outside is None:
            return values
        return values.masked_fill(outside, 0)
    return _gather_axis(data, index, outside, axis, batch)


def clamp_indices(
    indices: Tensor, length: int, static: int
) -> tuple[Tensor, Tensor | None]:
    """(indices as int64 within bounds, a mask of those that were out of bounds or None if there are
    none).
    """
    index = indices.to(torch.int64)
    if not index.numel():
        return index, None
    least = int(index.min())
    if least >= 0 and int(index.max()) < length:
        return index, None
    if static == -1 and least < 0:
        raise ValueError("a negative index into an axis of dynamic length is undefined")
    index = torch.where(index < 0, index + length, index)
    outside = (index < 0) | (index >= length)
    return index.clamp(0, max(length - 1, 0)), outside if bool(outside.any()) else None


def _gather_axis(
    data: Tensor, index: Tensor, outside: Tensor | None, axis: int, batch: int
) -> Tensor:
    """Gather along an axis. The first `batch` (0 or 1) axes of indices and data correspond, and are
    broadcast.
    """
    if batch:
        counts = data.shape[0], index.shape[0]
        count = max(counts) if all(counts) else 0
        data = data.expand(count, *data.shape[1:])
        index = index.expand(count, *index.shape[1:])
        pairs = zip(data, index, strict=True)
        rows = [
            _gather_axis(row, positions, None, axis - 1, 0) for row, positions in pairs
        ]
        leading = data.shape[1:axis]
        shape = (count, *leading, *index.shape[1:], *data.shape[axis + 1 :])
        values = torch.stack(rows) if rows else data.new_empty(shape)
    elif data.shape[axis]:
        values = data.index_select(axis, index.reshape(-1))
        values = values.reshape(_replaced(data, axis, index))
    else:
        values = data.new_zeros(_replaced(data, axis, index))
    if outside is None:
        return values
    before = [1] * (axis - batch)
    after = [1] * (data.dim() - axis - 1)
    outside = outside.reshape(
        (*outside.shape[:batch], *before, *outside.shape[batch:], *after)
    )
    return values.masked_fill(outside, 0)


def _replaced(data: Tensor, axis: int, index: Tensor) -> list[int]:
    """data's shape, with one axis replaced by the index's shape."""
    return [*data.shape[:axis], *index.shape, *data.shape[axis + 1 :]]


def _gather_nd(
    data: Tensor, indices: Tensor, batch: int, static: tuple[int, ...]
) -> Tensor:
    """Gather by coordinates: the last axis of the indices is a coordinate tuple for data's axes
    after the first `batch`.
    """
    rank = indices.dim() - 1
    positions = [
        along_axis(torch.arange(data.shape[axis]), axis, rank) for axis in range(batch)
    ]
    outside: Tensor | None = None
    for i in range(indices.shape[-1]):
        index, is_outside = clamp_indices(
            indices[..., i], data.shape[batch + i], static[batch + i]
        )
        positions.append(index)
        if is_outside is not None:
            if outside is not None:
                is_outside = outside | is_outside
            outside = is_outside
    values = (
        data[tuple(positions)]
        if positions
        else data.expand(*indices.shape[:-1], *data.shape)
    )
    if outside is None:
        return values
    trailing = [1] * (values.dim() - outside.dim())
    return values.masked_fill(outside.reshape((*outside.shape, *trailing)), 0)


@evaluates("SCATTER")
def scatter(layer: ILayer, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """`data` with `updates` written at `indices`: element-wise along `axis`, or slices at
    coordinate tuples.

    If several updates write to one element, the result is undefined.
    """
    static = tuple(layer.get_input(0).shape)
    if layer.mode.name == "ELEMENT":
        return data.scatter(
            layer.axis,
            _inside(indices, data.shape[layer.axis], static[layer.axis]),
            updates,
        )
    positions = tuple(
        _inside(indices[..., i], data.shape[i], static[i])
        for i in range(indices.shape[-1])
    )
    result = data.clone()
    result[positions] = updates
    return result


def _inside(indices: Tensor, length: int, static: int) -> Tensor:
    index, outside = clamp_indices(indices, length, static)
    if outside is not None:
        raise ValueError(
            f"an index of {int(indices.min())}..{int(indices.max())} is out of bounds of {length}"
        )
    return index
