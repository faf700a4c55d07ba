"""IScatterLayer and IOneHotLayer: values written at computed indices."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.axes import along_axis
from builder.reference.layers.gather import clamp_indices
from builder.reference.registry import evaluates


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


@evaluates("ONE_HOT")
def one_hot(layer: ILayer, indices: Tensor, values: Tensor, depth: Tensor) -> Tensor:
    """values[1] where the coordinate on the new axis equals the index, else values[0]. An index out
    of range has values[0] everywhere.
    """
    rank = indices.dim() + 1
    axis = layer.axis % rank
    classes = along_axis(torch.arange(int(depth)), axis, rank)
    return torch.where(indices.unsqueeze(axis) == classes, values[1], values[0])
