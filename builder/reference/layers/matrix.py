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
    first, second = layer.op0.name, layer.op1.name
    a = {"TRANSPOSE": lambda: a.mT, "VECTOR": lambda: a.unsqueeze(-2)}.get(first, lambda: a)()
    b = {"TRANSPOSE": lambda: b.mT, "VECTOR": lambda: b.unsqueeze(-1)}.get(second, lambda: b)()
    product = torch.matmul(a, b)
    product = product.squeeze(-1) if second == "VECTOR" else product
    if first == "VECTOR":
        product = product.squeeze(-1 if second == "VECTOR" else -2)
    return product


@evaluates("EINSUM")
@in_float32
def einsum(layer: ILayer, *operands: Tensor) -> Tensor:
    """The einsum of the equation. Without a right side, the output has the labels that occur once,
    in alphabetical order.
    """
    return torch.einsum(layer.equation, *operands)
