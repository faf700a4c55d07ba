"""Matrix products: operators with one IMatrixMultiplyLayer and a few element-wise layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.layers import combine, computed_in, reduced_sizes
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Scalar, Tensor
from builder.engine import ITensor, trt


@converter("aten::linear")
def linear(
    ctx: ConversionContext, x: ITensor, weight: Tensor, bias: Tensor | None
) -> ITensor:
    """input @ weight.T + bias; a weight of rank 1 is a vector, as in torch.nn.functional.linear"""
    product = matmul(ctx, x, weight, transpose_b=ctx.rank(weight) == 2)
    if bias is None:
        return product
    return add(ctx, product, bias)


def add(ctx: ConversionContext, a: ITensor, b: Tensor) -> ITensor:
    """a + b with broadcasting, for operands of one dtype."""
    total = ctx.elementwise("SUM", *ctx.broadcast(a, b))
    return ctx.wrapped(total, ctx.dtype(a))


def scaled(ctx: ConversionContext, x: Tensor, factor: Scalar) -> Any:
    """x * factor in the dtype of x; no layer for 1."""
    if not isinstance(factor, DynamicScalar) and factor == 1:
        return x
    if ctx.dtype(x) == torch.bool and not isinstance(factor, DynamicScalar):
        # as PyTorch: logical
        if factor:
            return x
        return ctx.elementwise("AND", ctx.tensor(x), ctx.like_scalar(ctx.tensor(x), 0))
    if isinstance(x, torch.Tensor) and not isinstance(factor, DynamicScalar):
        return (x * factor).to(x.dtype)
    dtype = ctx.dtype(x)
    product = ctx.elementwise("PROD", *ctx.operands(x, factor, dtype=dtype))
    return ctx.wrapped(product, dtype)


@converter(
    "aten::matmul",
    "aten::linalg_matmul",
    "aten::mm",
    "aten::bmm",
    "aten::mv",
    "aten::dot",
    "aten::vdot",
)
def product(ctx: ConversionContext, a: Tensor, b: Tensor, /) -> ITensor:
    """A product by torch.matmul's rules, which cover the special cases; integers are multiplied and
    summed.
    """
    return matmul(ctx, a, b)


def matmul(
    ctx: ConversionContext, a: Tensor, b: Tensor, transpose_b: bool = False
) -> ITensor:
    """a @ b of ITensors or static tensors of one dtype; a 1-d operand is a vector, batch axes
    broadcast.
    """
    dtype = ctx.dtype(a)
    if dtype.is_floating_point or dtype == torch.float64:
        return _layer(ctx, a, b, transpose_b)
    return _integer_product(ctx, a, b, transpose_b, dtype)


def _layer(ctx: ConversionContext, a: Tensor, b: Tensor, transpose_b: bool) -> ITensor:
    vector = trt.MatrixOperation.VECTOR
    op_a = op_b = trt.MatrixOperation.NONE
    if transpose_b:
        op_b = trt.MatrixOperation.TRANSPOSE
    if ctx.rank(a) == 1:
        op_a = vector
    if ctx.rank(b) == 1:
        op_b = vector
    vectors = ctx.rank(a) == 1 and ctx.rank(b) == 1
    rank = 1
    if not vectors:
        rank = max(ctx.rank(a), ctx.rank(b))
    a = ctx.at_rank(a, rank - (op_a == vector and not vectors))
    b = ctx.at_rank(b, rank - (op_b == vector and not vectors))
    result = ctx.net.add_matrix_multiply(a, op_a, b, op_b).get_output(0)
    return _note_matrix(ctx, a, b, result, op_a == vector, op_b)


def _note_matrix(
    ctx: ConversionContext,
    a: Tensor,
    b: Tensor,
    result: ITensor,
    a_vector: bool,
    op_b: Any,
) -> ITensor:
    """Record the sizes: rows come from a, columns from b; sizes.propagate handles the batch
    axes.
    """
    exprs = ctx.facts(result).exprs
    rank = ctx.rank(result)
    column = {"NONE": -1, "TRANSPOSE": -2}.get(op_b.name)
    sources = []
    if not a_vector:
        sources.append((a, -2))
    if column is not None:
        sources.append((b, column))
    for position, (source, axis) in enumerate(sources):
        target = rank - len(sources) + position
        if target >= 0 and result.shape[target] < 0:
            exprs[target] = ctx.expr(source, axis % ctx.rank(source))
    return result


def _integer_product(
    ctx: ConversionContext, a: Tensor, b: Tensor, transpose_b: bool, dtype: torch.dtype
) -> ITensor:
    """A product of integer matrices, by broadcast multiplication and a sum; TensorRT multiplies
    only floating-point matrices.
    """
    computed = computed_in(dtype)
    rows = ctx.tensor(a)
    columns = ctx.tensor(b)
    a_vector = ctx.rank(a) == 1
    b_vector = ctx.rank(b) == 1
    if transpose_b:
        rank = ctx.rank(b)
        columns = ctx.permute(columns, [*range(rank - 2), rank - 1, rank - 2])
    if a_vector:
        rows = ctx.unsqueeze(rows, [0])
    if b_vector:
        columns = ctx.unsqueeze(columns, [1])
    rows = ctx.unsqueeze(rows, [ctx.rank(rows)])
    columns = ctx.unsqueeze(columns, [ctx.rank(columns) - 2])
    terms = ctx.elementwise("PROD", *ctx.operands(rows, columns, dtype=computed))
    axis = ctx.rank(terms) - 2
    result = total(ctx, terms, [axis])
    dropped = []
    if a_vector:
        dropped.append(axis - 1)
    if b_vector:
        dropped.append(axis)
    result = ctx.squeeze(result, dropped)
    if computed != dtype:
        return ctx.cast(result, dtype)
    return ctx.wrapped(result, dtype)


def total(
    ctx: ConversionContext, x: Tensor, axes: Sequence[int], keep: bool = False
) -> Any:
    """The sum over some axes, in the dtype of x."""
    if not axes:
        return x
    mask = sum(1 << axis for axis in axes)
    result = ctx.net.add_reduce(x, trt.ReduceOperation.SUM, mask, keep).get_output(0)
    ctx.set_sizes(result, reduced_sizes(ctx, x, axes, keep))
    return ctx.wrapped(result, ctx.dtype(x))


@for_each("addmv", "baddbmm", "addr", "addbmm")
def _register_added(name: str) -> None:
    @converter(f"aten::{name}")
    def added(
        ctx: ConversionContext,
        x: Tensor,
        a: Tensor,
        b: Tensor,
        /,
        beta: Scalar,
        alpha: Scalar,
    ) -> Any:
        """beta * self + alpha * (a @ b); a beta of 0 ignores self, NaN or not"""
        result = outer(ctx, a, b) if name == "addr" else matmul(ctx, a, b)
        if name == "addbmm":
            result = total(ctx, result, [0])
        result = scaled(ctx, result, alpha)
        if not isinstance(beta, DynamicScalar) and beta == 0:
            return result
        return combine(ctx, "SUM", scaled(ctx, x, beta), result)


@converter("aten::outer", "aten::ger")
def outer(ctx: ConversionContext, a: Tensor, b: Tensor, /) -> ITensor:
    """self[:, None] * vec2[None, :], promoted"""
    column = a.unsqueeze(1) if isinstance(a, torch.Tensor) else ctx.unsqueeze(a, [1])
    return combine(ctx, "PROD", column, b)
