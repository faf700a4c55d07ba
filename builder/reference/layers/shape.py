"""Layers that move values without changing them: shuffle, concatenation, squeeze, unsqueeze."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.registry import evaluates


@evaluates("SHUFFLE")
def shuffle(layer: ILayer, x: Tensor, dims: Tensor | None = None) -> Tensor:
    """A transpose, a reshape and a second transpose, in this order. The second input replaces
    `reshape_dims`.
    """
    x = x.permute(tuple(layer.first_transpose)[: x.dim()])
    requested = dims.tolist() if dims is not None else reshape_dims(layer)
    if requested is not None:
        x = x.reshape(resolve_dims(x, requested, layer.zero_is_placeholder))
    return x.permute(tuple(layer.second_transpose)[: x.dim()])


def reshape_dims(layer: ILayer) -> list[int] | None:
    """The static dims; None if there is no reshape. Some versions then raise an error, because the
    rank is negative.
    """
    try:
        dims = layer.reshape_dims
        return None if dims is None else list(dims)
    except ValueError:
        return None


def resolve_dims(
    x: Tensor, requested: list[int], zero_is_placeholder: bool
) -> list[int]:
    """`requested` without placeholders. 0 copies x's length at the same index (unless it means 0),
    and -1 is inferred.
    """
    dims = list(requested)
    if zero_is_placeholder:
        for axis, size in enumerate(requested):
            if size == 0:
                dims[axis] = x.shape[axis]
    if -1 in dims:
        volume = math.prod(size for size in dims if size != -1)
        dims[dims.index(-1)] = x.numel() // volume if volume else 0
    return dims


@evaluates("CONCATENATION")
def concatenation(layer: ILayer, *tensors: Tensor) -> Tensor:
    """The inputs joined along `axis`."""
    # torch.cat drops one-dimensional empty tensors for any axis, with the same result here
    return torch.cat(tensors, dim=layer.axis)


@evaluates("SQUEEZE")
def squeeze(layer: ILayer, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """x without the given axes, each of length 1. If `axes` is None, all axes of length 1 are
    removed.
    """
    if axes is None:
        return x.squeeze()
    removed = {int(axis) % x.dim() for axis in axes.reshape(-1)}
    if any(x.shape[axis] != 1 for axis in removed):
        raise ValueError(
            f"axes {sorted(removed)} of {tuple(x.shape)} are not all of length 1"
        )
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in removed])


@evaluates("UNSQUEEZE")
def unsqueeze(layer: ILayer, x: Tensor, axes: Tensor) -> Tensor:
    """x with axes of length 1 inserted at the given indices of the result."""
    rank = x.dim() + axes.numel()
    for axis in sorted(int(axis) % rank for axis in axes.reshape(-1)):
        x = x.unsqueeze(axis)
    return x
