"""Matrices, composed of products, transpositions and diagonals."""

from __future__ import annotations

from typing import Any

from builder.conversion.composing import compose, function

compose(
    __name__,
    {
        f"aten::{name}(Tensor(a) self) -> Tensor(a)": (
            "the last two axes exchanged",
            function("self: Tensor", "return torch.transpose(self, -2, -1)"),
        )
        for name in ("matrix_H", "matrix_H.a")
    },
)
compose(
    __name__,
    {
        "aten::trace(Tensor self) -> Tensor": (
            "the sum of the diagonal",
            function("self: Tensor", "return torch.sum(torch.diagonal(self))"),
        ),
        "aten::diagflat(Tensor self, int offset=0) -> Tensor": (
            "a matrix whose diagonal is the flattened tensor",
            function(
                "self: Tensor, offset: int", "return torch.diag_embed(self.reshape([-1]), offset)"
            ),
        ),
        "aten::linalg_diagonal(Tensor(a) A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor(a)": (
            "diagonal",
            function(
                "A: Tensor, offset: int, dim1: int, dim2: int",
                "return torch.diagonal(A, offset, dim1, dim2)",
            ),
        ),
    },
)


def not_inverted(ctx: Any, arguments: Any) -> str | None:
    """not below the power 0"""
    return "TensorRT has no layer that inverts a matrix" if arguments.n < 0 else None


compose(
    __name__,
    {
        f"aten::{name}(Tensor self, int n) -> Tensor": (
            "the matrix multiplied by itself n times, by repeated squaring",
            function(
                "self: Tensor, n: int",
                "result = torch.eye(self.size(-1), dtype=self.dtype)",
                "result = result.expand(self.size())",
                "square = self",
                "rest = n",
                "for i in range(16):",
                "    if rest > 0:",
                "        if rest % 2 == 1:",
                "            result = torch.matmul(result, square)",
                "        rest = rest // 2",
                "        if rest > 0:",
                "            square = torch.matmul(square, square)",
                "return result",
            ),
        )
        for name in ("matrix_power", "linalg_matrix_power")
    },
    when=not_inverted,
)
