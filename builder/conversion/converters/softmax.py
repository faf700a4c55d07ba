"""Softmax and its logarithm, in the requested dtype."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.converters.casting import in_dtype
from builder.conversion.registry import converter
from builder.engine import ITensor


@converter("aten::softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor")
def softmax(ctx: ConversionContext, x: ITensor, dim: int, dtype: int | None) -> ITensor:
    """exp(x) / sum(exp(x)) along an axis"""
    return softmax_layer(ctx, in_dtype(ctx, x, dtype), dim)


@converter("aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor")
def half_softmax(
    ctx: ConversionContext, x: ITensor, dim: int, half_to_float: bool
) -> Any:
    """softmax, with a float32 result for half if requested"""
    return softmax_layer(
        ctx, in_dtype(ctx, x, torch.float32 if half_to_float else None), dim
    )


def softmax_layer(ctx: ConversionContext, x: ITensor, dim: int) -> ITensor:
    """One ISoftMaxLayer. It requires two axes, so a vector becomes a matrix of one row."""
    rank = ctx.rank(x)
    axis = ctx.axis(x, dim)
    wide = ctx.at_rank(x, 2)
    layer = ctx.net.add_softmax(wide)
    layer.axes = 1 << (axis + ctx.rank(wide) - max(rank, 1))
    result = ctx.copy_sizes(wide, layer.get_output(0))
    if rank < 2:
        return ctx.squeeze(result, list(range(2 - rank)))
    return result
