"""Indices of nonzero elements: the only layer with a data-dependent output size, and where it is
available.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from builder.conversion.context import ConversionContext
from builder.engine import ITensor, capabilities


def available() -> bool:
    """Whether this TensorRT supports it."""
    return capabilities.current().data_dependent_sizes


def data_dependent(
    ctx: ConversionContext, args: SimpleNamespace | None = None
) -> str | None:
    """not on TensorRT-RTX"""
    if available():
        return None
    return "its size depends on the data, and TensorRT-RTX has no kernel for that (NonZero)"


def positions(ctx: ConversionContext, x: ITensor) -> ITensor:
    """[found, rank] int64: the indices of the nonzero elements, in row-major order."""
    # [rank, found], int32
    columns = ctx.net.add_non_zero(ctx.cast(x, torch.bool)).get_output(0)
    return ctx.cast(ctx.permute(columns, [1, 0]), torch.int64)
