"""Matrix operators, composed of products, transposes and diagonals."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from builder.decompositions.registry import Number, decomposition


@decomposition("aten::addmm")
def addmm(
    self: Tensor, mat1: Tensor, mat2: Tensor, beta: Number, alpha: Number
) -> Tensor:
    """beta self + alpha mat1 mat2; with beta 0, self is ignored, including NaN"""
    product = torch.matmul(mat1, mat2)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        result = product
    elif beta == 1:
        result = product + self
    else:
        result = product + self * beta
    return result


@decomposition("aten::matrix_H", "aten::matrix_H.a")
def matrix_h(self: Tensor) -> Tensor:
    """the last two axes exchanged"""
    return torch.transpose(self, -2, -1)


@decomposition("aten::trace")
def trace(self: Tensor) -> Tensor:
    """the sum of the diagonal"""
    return torch.sum(torch.diagonal(self))


@decomposition("aten::diagflat")
def diagflat(self: Tensor, offset: int) -> Tensor:
    """a matrix whose diagonal is the flattened tensor"""
    return torch.diag_embed(self.reshape([-1]), offset)


@decomposition("aten::linalg_diagonal")
def linalg_diagonal(A: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    """diagonal"""
    return torch.diagonal(A, offset, dim1, dim2)


def not_inverted(arguments: SimpleNamespace) -> str | None:
    """not below the power 0"""
    return "TensorRT has no layer that inverts a matrix" if arguments.n < 0 else None


@decomposition("aten::matrix_power", "aten::linalg_matrix_power", when=not_inverted)
def matrix_power(self: Tensor, n: int) -> Tensor:
    """the matrix multiplied by itself n times, by repeated squaring"""
    result = torch.eye(self.size(-1), dtype=self.dtype)
    result = result.expand(self.size())
    square = self
    exponent = n
    for i in range(16):
        if exponent > 0:
            if exponent % 2 == 1:
                result = torch.matmul(result, square)
            exponent = exponent // 2
            if exponent > 0:
                square = torch.matmul(square, square)
    return result
