"""IMatrixMultiplyLayer and IEinsumLayer."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import in_float32
from builder.reference.registry import evaluates


@evaluates("MATRIX_MULTIPLY")
@in_float32
def matrix_multiply(layer: ILayer, a: Tensor, b: Tensor) -> Tensor:
    """op0(a) times op1(b), for batches of matrices or vectors. Batch axes of length 1 are
    broadcast.
    """
    a = _operand(a, layer.op0.name, -2)
    b = _operand(b, layer.op1.name, -1)
    product = torch.matmul(a, b)
    if layer.op0.name == "VECTOR":
        product = product.squeeze(-2)
    if layer.op1.name == "VECTOR":
        product = product.squeeze(-1)
    return product


def _operand(x: Tensor, operation: str, new_axis: int) -> Tensor:
    """The matrices of an operand; those of a vector have an axis of length 1 at `new_axis`."""
    if operation == "TRANSPOSE":
        return x.mT
    if operation == "VECTOR":
        return x.unsqueeze(new_axis)
    return x


@evaluates("EINSUM")
@in_float32
def einsum(layer: ILayer, *operands: Tensor) -> Tensor:
    """The einsum of the equation. Without a right side, the output has the labels that occur once,
    in alphabetical order.
    """
    return torch.einsum(layer.equation, *operands)
