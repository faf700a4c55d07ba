"""Products of vectors and tensors: inner, tensordot, chains, cross, Kronecker and bilinear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.linear import add, matmul, total
from builder.conversion.layers import combine, gathered
from builder.conversion.registry import converter
from builder.conversion.values import Tensor
from builder.engine import ITensor


@converter("aten::inner")
def inner(ctx: ConversionContext, x: Tensor, other: Tensor) -> ITensor:
    """sum over the last axis of both: tensordot(self, other, [-1], [-1])"""
    if not ctx.rank(x) or not ctx.rank(other):
        return combine(ctx, "PROD", x, other)
    last, other_last = ctx.rank(x) - 1, ctx.rank(other) - 1
    return contract(ctx, x, other, [last], [other_last])


@converter("aten::tensordot")
def tensordot(
    ctx: ConversionContext,
    x: Tensor,
    other: Tensor,
    dims_self: list[int],
    dims_other: list[int],
) -> ITensor:
    """Sums over pairs of axes; the remaining axes of self come first"""
    axes = [ctx.axis(x, dim) for dim in dims_self]
    other_axes = [ctx.axis(other, dim) for dim in dims_other]
    return contract(ctx, x, other, axes, other_axes)


def contract(
    ctx: ConversionContext, a: Tensor, b: Tensor, dims_a: list[int], dims_b: list[int]
) -> ITensor:
    """Reshape both operands to matrices with the contracted axes innermost; one matrix product."""
    whole_a = ctx.tensor(a)
    whole_b = ctx.tensor(b)
    a = _summed(ctx, whole_a, whole_b, dims_a, dims_b)
    b = _summed(ctx, whole_b, whole_a, dims_b, dims_a)
    free_a = [axis for axis in range(ctx.rank(a)) if axis not in dims_a]
    free_b = [axis for axis in range(ctx.rank(b)) if axis not in dims_b]
    sizes = [
        *(ctx.size(a, axis) for axis in free_a),
        *(ctx.size(b, axis) for axis in free_b),
    ]
    left = _matrix(ctx, a, free_a, dims_a)
    right = _matrix(ctx, b, dims_b, free_b)
    return ctx.reshape(matmul(ctx, left, right), sizes)


def _summed(
    ctx: ConversionContext,
    x: Tensor,
    other: Tensor,
    axes_of_x: list[int],
    others: list[int],
) -> Any:
    """If the other axis of a pair has size 1 it broadcasts: this axis is summed first."""
    axes = []
    for axis, other_axis in zip(axes_of_x, others, strict=True):
        if other.shape[other_axis] == 1 and x.shape[axis] != 1:
            axes.append(axis)
    return total(ctx, x, axes, keep=True)


def _matrix(
    ctx: ConversionContext, x: Any, rows: list[int], columns: list[int]
) -> ITensor:
    order = [*rows, *columns]
    sizes = [math.prod(ctx.size(x, axis) for axis in axes) for axes in (rows, columns)]
    if order != sorted(order):
        x = ctx.permute(x, order)
    return x if len(rows) == len(columns) == 1 else ctx.reshape(x, sizes)


@converter("aten::chain_matmul", "aten::linalg_multi_dot")
def chain(ctx: ConversionContext, x: list[ITensor]) -> ITensor:
    """Products from left to right; the order changes only the rounding"""
    result = x[0]
    for matrix in x[1:]:
        result = matmul(ctx, result, matrix)
    return result


@converter("aten::linalg_vecdot")
def vecdot(ctx: ConversionContext, x: Tensor, y: Tensor, dim: int) -> Any:
    """sum(x * y, dim) of broadcast tensors"""
    terms = combine(ctx, "PROD", x, y)
    return total(ctx, terms, [ctx.axis(terms, dim)])


@converter("aten::linalg_cross")
def linalg_cross(ctx: ConversionContext, x: Tensor, other: Tensor, dim: int) -> ITensor:
    """a x b along an axis of size 3: a[1,2,0] * b[2,0,1] - a[2,0,1] * b[1,2,0]"""
    x, other = ctx.broadcast(x, other)
    axis = ctx.axis(x, dim)
    up, down = (1, 2, 0), (2, 0, 1)
    a1 = _rolled(ctx, x, axis, up)
    a2 = _rolled(ctx, x, axis, down)
    b1 = _rolled(ctx, other, axis, up)
    b2 = _rolled(ctx, other, axis, down)
    left = combine(ctx, "PROD", a1, b2)
    right = combine(ctx, "PROD", a2, b1)
    return combine(ctx, "SUB", left, right)


@converter("aten::cross")
def cross(ctx: ConversionContext, x: Tensor, other: Tensor, dim: int | None) -> Any:
    """As linalg.cross; without dim along the first axis of size 3"""
    if dim is None:
        if 3 not in tuple(x.shape):
            raise Unconvertible(
                "cross without dim needs an axis that is 3 at build time",
                "pass dim to torch.cross",
            )
        dim = tuple(x.shape).index(3)
    return linalg_cross(ctx, x, other, dim)


def _rolled(
    ctx: ConversionContext, x: Tensor, axis: int, order: Sequence[int]
) -> ITensor:
    return gathered(ctx, ctx.tensor(x), torch.tensor(order), axis)


@converter("aten::kron")
def kron(ctx: ConversionContext, x: Tensor, other: Tensor) -> ITensor:
    """The Kronecker product: a's axes are outer, b's are inner"""
    rank = max(ctx.rank(x), ctx.rank(other))
    x = ctx.at_rank(ctx.tensor(x), rank)
    other = ctx.at_rank(ctx.tensor(other), rank)
    sizes = [
        length * other_length
        for length, other_length in zip(ctx.sizes(x), ctx.sizes(other), strict=True)
    ]
    outside = ctx.unsqueeze(x, [2 * i + 1 for i in range(rank)])
    inside = ctx.unsqueeze(other, [2 * i for i in range(rank)])
    return ctx.reshape(combine(ctx, "PROD", outside, inside), sizes)


@converter("aten::bilinear")
def bilinear(
    ctx: ConversionContext,
    x: ITensor,
    input2: ITensor,
    weight: Tensor,
    bias: Tensor | None,
) -> ITensor:
    """y[o] = x^T W[o] y + bias[o]"""
    *batch, features = ctx.sizes(x)
    sizes = [*batch, ctx.size(weight, 0)]
    count = math.prod(batch)
    rows = ctx.reshape(x, [count, features])
    others = ctx.reshape(input2, [count, ctx.sizes(input2)[-1]])
    rows = ctx.unsqueeze(rows, [0])
    left = matmul(ctx, rows, ctx.tensor(weight))  # out, rows, in2
    terms = total(ctx, combine(ctx, "PROD", left, ctx.unsqueeze(others, [0])), [2])
    result = ctx.reshape(ctx.permute(terms, [1, 0]), sizes)
    if bias is None:
        return result
    return add(ctx, result, bias)
