"""Layers that create or convert values: constant, identity, cast, fill, shape."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import (
    along_axis,
    output_dtype,
    torch_dtype,
    weights_tensor,
)
from builder.reference.registry import evaluates


@evaluates("CONSTANT")
def constant(layer: ILayer) -> Tensor | None:
    """The weights, in the layer's shape."""
    return weights_tensor(layer.weights, layer.shape)


@evaluates("SHAPE")
def shape(layer: ILayer, x: Tensor) -> Tensor:
    """x's lengths: a vector of int64, or int32 if TensorRT has no int64."""
    return torch.tensor(x.shape, dtype=output_dtype(layer))


@evaluates("CAST")
def cast(layer: ILayer, x: Tensor) -> Tensor:
    """x as `to_type`. Floats are truncated to integers; every value except 0 converts to true."""
    return x.to(torch_dtype(layer.to_type))


@evaluates("IDENTITY")
def identity(layer: ILayer, x: Tensor) -> Tensor:
    """x, converted if the output has another type (weakly typed networks)."""
    return x.to(output_dtype(layer))


@evaluates("FILL")
def fill(
    layer: ILayer,
    shape: Tensor | None = None,
    alpha: Tensor | None = None,
    beta: Tensor | None = None,
) -> Tensor:
    """LINSPACE: start (alpha) plus, for each axis, its coordinate times that axis's delta (beta).

    Inputs replace the attributes `shape`, `alpha` and `beta`. Random fills have no value to compare
    with.
    """
    if layer.operation.name != "LINSPACE":
        raise ValueError(
            f"a fill of {layer.operation.name} is random: there is no reference for it"
        )
    lengths = [int(length) for length in (layer.shape if shape is None else shape)]
    dtype = output_dtype(layer)
    if beta is None:
        beta = torch.tensor([layer.beta])
    deltas = beta.reshape(-1).to(dtype)
    first = torch.as_tensor(layer.alpha if alpha is None else alpha).to(dtype)
    value = first.reshape(()).expand(lengths)
    for axis, (length, delta) in enumerate(zip(lengths, deltas, strict=True)):
        steps = torch.arange(length, dtype=dtype) * delta
        value = value + along_axis(steps, axis, len(lengths))
    return value.contiguous()


@evaluates("CONDITIONAL_INPUT")
def conditional_input(layer: ILayer, x: Tensor) -> Tensor:
    """x, as an input of a conditional's branches."""
    return x
