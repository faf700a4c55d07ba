"""Selections by a mask: one ISelectLayer each."""

from __future__ import annotations

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.layers import choose
from builder.conversion.registry import converter
from builder.conversion.values import Operand, Tensor
from builder.engine import ITensor


@converter(
    "aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor",
    "aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor",
    constants=("self", "mask", "value"),
    dynamic=("value",),
)
def masked_fill(
    ctx: ConversionContext, x: Tensor, mask: Tensor, value: Operand
) -> ITensor:
    """value where the mask is true, else x; in x's dtype"""
    dtype = ctx.dtype(x)
    if isinstance(value, float) and not dtype.is_floating_point:
        value = bool(value) if dtype == torch.bool else int(value)
    return choose(ctx, mask, value, x, dtype)


@converter(
    "aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor",
    "aten::where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor",
    "aten::where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor",
    "aten::where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor",
    constants=("condition", "self", "other"),
    dynamic=("self", "other"),
)
def where(
    ctx: ConversionContext, condition: Tensor, self: Operand, other: Operand
) -> ITensor:
    """x where the condition is true, else other"""
    return choose(ctx, condition, self, other)
