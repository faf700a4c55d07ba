"""IGatherLayer and IScatterLayer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from builder.reference.registry import evaluates


@evaluates("GATHER")
def gather(layer: Any, data: Tensor, indices: Tensor) -> Tensor:
    """Values of `data` at `indices`, by GatherMode: along an axis, element by element, or by coordinate tuples."""
    batch = layer.num_elementwise_dims
    if layer.mode.name == "ELEMENT":
        return data.gather(layer.axis, within(indices, data.shape[layer.axis]))
    if layer.mode.name == "ND":
        return _gather_nd(data, indices, batch)
    return _gather_axis(data, indices, layer.axis, batch)


def _gather_axis(data: Tensor, indices: Tensor, axis: int, batch: int) -> Tensor:
    """The first `batch` (0 or 1) axes of indices go hand in hand with data's."""
    index = within(indices, data.shape[axis])
    if not batch:
        taken = data.index_select(axis, index.reshape(-1))
        return taken.reshape(*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    count = max(data.shape[0], index.shape[0])
    data, index = data.expand(count, *data.shape[1:]), index.expand(count, *index.shape[1:])
    rows = [_gather_axis(row, i, axis - 1, batch - 1) for row, i in zip(data, index, strict=True)]
    shape = (count, *data.shape[1:axis], *indices.shape[1:], *data.shape[axis + 1 :])
    return torch.stack(rows) if rows else data.new_empty(shape)


def _gather_nd(data: Tensor, indices: Tensor, batch: int) -> Tensor:
    lead = [_counter(data.shape[i], i, indices.dim() - 1) for i in range(batch)]
    parts = [within(indices[..., i], data.shape[batch + i]) for i in range(indices.shape[-1])]
    return data[tuple(lead + parts)] if lead or parts else data.expand(*indices.shape[:-1], *data.shape)


def _counter(length: int, axis: int, rank: int) -> Tensor:
    return torch.arange(length).reshape([-1 if i == axis else 1 for i in range(rank)])


def within(indices: Tensor, length: int) -> Tensor:
    """Indices as int64. TensorRT wants 0 <= index < length, so a negative one is an error too (ValueError)."""
    index = indices.to(torch.int64)
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= length):
        raise ValueError(f"indices {int(index.min())}..{int(index.max())} are out of bounds of an axis of {length}")
    return index


@evaluates("SCATTER")
def scatter(layer: Any, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """`data` with `updates` written at `indices`: element by element along `axis`, or slices at coordinate tuples."""
    if layer.mode.name == "ELEMENT":
        return data.scatter(layer.axis, within(indices, data.shape[layer.axis]), updates)
    parts = tuple(within(indices[..., i], data.shape[i]) for i in range(indices.shape[-1]))
    result = data.clone()
    result[parts] = updates
    return result
