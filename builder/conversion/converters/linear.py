"""Matrix products."""

from __future__ import annotations

from typing import Any


from builder.conversion.context import ConversionContext
from builder.conversion.registry import converter
from builder.engine.flavour import trt


@converter(
    "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", constants=("weight", "bias")
)
def linear(ctx: ConversionContext, node: Any, x: Any, weight: Any, bias: Any) -> Any:
    """input @ weight.T + bias"""
    product = matmul_layer(ctx, x, weight, transpose_b=True)
    return product if bias is None else ctx.elementwise("SUM", *ctx.broadcast(product, bias))


def matmul_layer(ctx: ConversionContext, a: Any, b: Any, transpose_b: bool = False) -> Any:
    """One IMatrixMultiplyLayer; a 1-d operand is a vector, batch axes broadcast."""
    plain, transposed, vector = (getattr(trt.MatrixOperation, n) for n in ("NONE", "TRANSPOSE", "VECTOR"))
    rank = max(ctx.rank(a), ctx.rank(b))
    op_a = vector if ctx.rank(a) == 1 else plain
    op_b = vector if ctx.rank(b) == 1 else transposed if transpose_b else plain
    a = ctx.at_rank(a, rank if op_a == plain else rank - 1)
    b = ctx.at_rank(b, rank - 1 if op_b == vector else rank)
    return ctx.net.add_matrix_multiply(a, op_a, b, op_b).get_output(0)


