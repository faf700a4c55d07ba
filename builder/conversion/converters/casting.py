"""Dtype conversions. Moves between devices are no-ops, because an engine has one device."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.evaluators.prim import dtype_of_code
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Tensor
from builder.dtypes import TABLE, name_of, torch_dtype
from builder.engine import ITensor

SUPPORTED = frozenset(
    [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
    ]
)


def converted(
    ctx: ConversionContext, x: ITensor, dtype: torch.dtype | int | None
) -> ITensor:
    """x.to(dtype), with a torch.dtype or TorchScript's code. Floats lose their fraction; float64 is
    narrowed with a warning.
    """
    target = dtype_of_code(dtype)
    if target is None:
        return x
    if target == torch.float64:
        if ctx.dtype(x) != torch.float32:
            ctx.warn("float64 is narrowed to float32; TensorRT has no float64")
        target = torch.float32
    if target not in SUPPORTED:
        raise Unconvertible(f"TensorRT has no {name_of(target)}")
    return ctx.cast(x, target)


def in_dtype(
    ctx: ConversionContext, x: ITensor, dtype: torch.dtype | int | None
) -> ITensor:
    """x in the dtype of an operator's argument, None for its own: cast before anything is
    computed.
    """
    target = dtype_of_code(dtype)
    if target is None:
        return x
    return ctx.cast(x, target)


@converter(
    "aten::to.dtype",
    "aten::to.prim_dtype",
    "aten::to.device",
    "aten::to.prim_Device",
    "aten::to.dtype_layout",
    "aten::_to_copy",
)
def to_dtype(ctx: ConversionContext, x: ITensor, dtype: int | None) -> ITensor:
    """self.to(dtype, ...)"""
    return converted(ctx, x, dtype)


@converter("aten::to.other")
def to_other(ctx: ConversionContext, x: ITensor, other: Tensor) -> Any:
    """self.to(other.dtype)"""
    return converted(ctx, x, ctx.dtype(other))


@converter("aten::to.prim_other")
def to_nothing(ctx: ConversionContext, x: ITensor) -> Any:
    """self.to() with neither dtype nor device"""
    return x


CASTS = frozenset("Float Half Int Long Byte Char Double Short".split())
"""The types with an operator `aten::_cast_<name>`."""


@for_each(
    *(
        (entry.scalar_type, torch_dtype(entry))
        for entry in TABLE
        if entry.scalar_type in CASTS
    )
)
def _register_cast(name: str, dtype: torch.dtype) -> None:
    @converter(f"aten::_cast_{name}")
    def cast(ctx: ConversionContext, x: ITensor) -> ITensor:
        """self.to the dtype of the name"""
        return converted(ctx, x, dtype)
