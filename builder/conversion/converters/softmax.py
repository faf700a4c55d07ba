"""Softmax and its logarithm, in the dtype that the caller asks for."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.evaluators.prim import dtype_of
from builder.conversion.layers import combine, reduce
from builder.conversion.registry import converter


@converter("aten::softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor")
def softmax(ctx: ConversionContext, node: Any, x: Any, dim: int, dtype: int | None) -> Any:
    """exp(x) / sum(exp(x)) along an axis"""
    return softmax_layer(ctx, asked(ctx, x, dtype), dim)


@converter("aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor")
def half_softmax(ctx: ConversionContext, node: Any, x: Any, dim: int, half_to_float: bool) -> Any:
    """softmax, of half as float32 where asked for"""
    return softmax_layer(ctx, asked(ctx, x, torch.float32 if half_to_float else None), dim)


def asked(ctx: ConversionContext, x: Any, dtype: int | torch.dtype | None) -> Any:
    """x in the dtype of the argument, cast before anything is computed."""
    wanted = dtype_of(dtype)
    return x if wanted is None else ctx.cast(x, wanted)


def softmax_layer(ctx: ConversionContext, x: Any, dim: int) -> Any:
    """One ISoftMaxLayer; it wants two axes, so a vector is a matrix of one row."""
    rank, axis = ctx.rank(x), ctx.axis(x, dim)
    wide = ctx.at_rank(x, 2)
    layer = ctx.net.add_softmax(wide)
    layer.axes = 1 << (axis + ctx.rank(wide) - max(rank, 1))
    result = ctx.copy_sizes(wide, layer.get_output(0))
    return ctx.squeeze(result, list(range(2 - rank))) if rank < 2 else result


@converter("aten::log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor")
def log_softmax(ctx: ConversionContext, node: Any, x: Any, dim: int, dtype: int | None) -> Any:
    """x - m - log(sum(exp(x - m))), m the largest: finite where softmax underflows to 0"""
    return log_softmax_layers(ctx, asked(ctx, x, dtype), dim)


@converter("aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor")
def half_log_softmax(
    ctx: ConversionContext, node: Any, x: Any, dim: int, half_to_float: bool
) -> Any:
    """log_softmax, of half as float32 where asked for"""
    return log_softmax_layers(ctx, asked(ctx, x, torch.float32 if half_to_float else None), dim)


def log_softmax_layers(ctx: ConversionContext, x: Any, dim: int) -> Any:
    """Six layers on a floating tensor; a 0-d one counts as one element, whose logarithm of 1 is
    0.
    """
    axes = [ctx.axis(x, dim)] if ctx.rank(x) else []
    shifted = combine(ctx, "SUB", x, reduce(ctx, "MAX", x, axes, True))
    total = reduce(ctx, "SUM", ctx.unary("EXP", shifted), axes, True)
    return combine(ctx, "SUB", shifted, ctx.unary("LOG", total))
