"""Distances and angles between vectors."""

from __future__ import annotations

from typing import Any

from builder.conversion.context import ConversionContext
from builder.conversion.converters.moments import vector_norm
from builder.conversion.dynamic import same_size
from builder.conversion.layers import combine, floating, half_as_float32, reduce
from builder.conversion.registry import converter
from builder.engine import ITensor


@converter("aten::cosine_similarity")
def cosine_similarity(
    ctx: ConversionContext, x1: ITensor, x2: ITensor, dim: int, eps: float
) -> ITensor:
    """sum(a * b) / (max(|a|, eps) max(|b|, eps)) along an axis"""
    x1, x2 = ctx.operands(floating(ctx, x1), floating(ctx, x2))
    return _cosine(ctx, x1, x2, dim, eps)


@half_as_float32
def _cosine(
    ctx: ConversionContext, x1: ITensor, x2: ITensor, dim: int, eps: float
) -> ITensor:
    axes = []
    if ctx.rank(x1):
        axes = [ctx.axis(x1, dim)]
    x1, x2 = as_long(ctx, x1, x2, axes), as_long(ctx, x2, x1, axes)
    units = []
    for x in (x1, x2):
        norm = vector_norm(ctx, x, 2, axes, keepdim=True)
        units.append(combine(ctx, "DIV", x, combine(ctx, "MAX", norm, eps)))
    return reduce(ctx, "SUM", combine(ctx, "PROD", *units), axes)


def as_long(
    ctx: ConversionContext, x: ITensor, other: ITensor, axes: list[int]
) -> ITensor:
    """x with these axes broadcast to the other's length, because the norm is that of the broadcast
    vector.
    """
    sizes: list[Any] = [-1] * ctx.rank(x)
    for axis in axes:
        length = ctx.size(x, axis)
        other_length = ctx.size(other, axis)
        sizes[axis] = length
        if not same_size(length, other_length):
            sizes[axis] = ctx.maximum(length, other_length)
    return ctx.expand(x, sizes)


@converter("aten::dist")
def dist(ctx: ConversionContext, x: ITensor, other: ITensor, p: float) -> ITensor:
    """The p-norm of the difference"""
    return vector_norm(ctx, combine(ctx, "SUB", x, other), p, None)


@converter("aten::pairwise_distance")
def pairwise_distance(
    ctx: ConversionContext,
    x1: ITensor,
    x2: ITensor,
    p: float,
    eps: float,
    keepdim: bool,
) -> ITensor:
    """The p-norm of a - b + eps along the last axis"""
    difference = combine(ctx, "SUM", combine(ctx, "SUB", x1, x2), eps)
    return vector_norm(ctx, difference, p, [ctx.rank(difference) - 1], keepdim=keepdim)


@converter(
    "aten::cdist",
    "aten::_cdist_forward",
    note=(
        "from the differences themselves (P R M values), which are exact where PyTorch's matrix"
        " product cancels; for p 0 and inf, NaN may become another number"
    ),
)
def cdist(ctx: ConversionContext, x1: ITensor, x2: ITensor, p: float) -> ITensor:
    """The p-norm of the difference of every row of a with every row of b"""
    x1, x2 = ctx.operands(x1, x2)
    rank = ctx.rank(x1)
    difference = combine(
        ctx, "SUB", ctx.unsqueeze(x1, [rank - 1]), ctx.unsqueeze(x2, [rank - 2])
    )
    return vector_norm(ctx, difference, p, [rank])
