"""Differences between neighbors along an axis."""

from __future__ import annotations

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.converters.joining import joined
from builder.conversion.converters.select import sliced
from builder.conversion.layers import combine
from builder.conversion.registry import converter
from builder.engine import ITensor


@converter(
    "aten::diff(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) ->"
    " Tensor"
)
def diff(
    ctx: ConversionContext,
    x: ITensor,
    n: int,
    dim: int,
    prepend: ITensor | None,
    append: ITensor | None,
) -> ITensor:
    """x[1:] - x[:-1] along an axis, n times; for bools, whether they differ"""
    axis = ctx.axis(x, dim)
    if n:
        x = joined(
            ctx, [tensor for tensor in (prepend, x, append) if tensor is not None], axis
        )
    for _ in range(n):
        less = ctx.arithmetic("max", ctx.arithmetic("sub", ctx.size(x, axis), 1), 0)
        x = _difference(
            ctx, sliced(ctx, x, axis, 1, less), sliced(ctx, x, axis, 0, less)
        )
    return x


def _difference(ctx: ConversionContext, later: ITensor, earlier: ITensor) -> ITensor:
    if ctx.dtype(later) == torch.bool:
        return ctx.copy_sizes(later, ctx.elementwise("XOR", later, earlier))
    return ctx.copy_sizes(later, combine(ctx, "SUB", later, earlier))
