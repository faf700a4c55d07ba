"""Convert tensors with N, C and spatial axes to the form that TensorRT requires: a batch axis, and
at least two spatial axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import sympy
import torch

from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.evaluators.creation import counted
from builder.engine import ITensor


def filled(values: Size | Sequence[Size], count: int) -> list[int]:
    """A size argument for `count` axes. In PyTorch one number applies to all."""
    if isinstance(values, int | DynamicScalar):
        values = [values]
    numbers: list[Any] = list(values)
    if len(numbers) == 1:
        return numbers * count
    return numbers


def as_image(
    ctx: ConversionContext, x: ITensor, axes: int
) -> tuple[Any, Callable[[Any], Any]]:
    """`x` of (N,) C and `axes` spatial axes with a batch axis and at least two spatial ones, and
    the inverse function.

    One spatial axis becomes two, the last of size 1: TensorRT's windows are 2-D or 3-D.
    """
    unbatched = ctx.rank(x) == axes + 1
    flat = axes == 1
    added = []
    if unbatched:
        added.append(0)
    if flat:
        added.append(axes + 2)
    return ctx.unsqueeze(x, added), lambda y: ctx.squeeze(y, added)


def with_unit(values: Sequence[int], unit: int) -> list[int]:
    """Window settings for two axes or more: `unit` for the axis that `as_image` adds to a single
    one.
    """
    if len(values) == 1:
        return [*values, unit]
    return list(values)


def note_spatial(
    ctx: ConversionContext,
    x: ITensor,
    y: ITensor,
    length: Callable[[int, sympy.Expr], sympy.Expr],
) -> ITensor:
    """Record the symbolic sizes of `y` (N, K, spatial): `length(i, size)` of the i-th spatial axis
    of `x`. A dynamic K is that of `x`, which occurs only in pooling.
    """
    channels = y.shape[1] if y.shape[1] >= 0 else ctx.expr(x, 1)
    exprs: list[Any] = [ctx.expr(x, 0), channels]
    for axis in range(2, ctx.rank(y)):
        static = y.shape[axis]
        exprs.append(static if static >= 0 else length(axis - 2, ctx.expr(x, axis)))
    return ctx.set_sizes(y, exprs)


@lru_cache(maxsize=4096)
def windows(
    length: sympy.Expr, padding: int, window: int, stride: int, up: bool = False
) -> sympy.Expr:
    """The number of windows that fit in an axis, `padding` on both sides together: (I + P - K) / S
    + 1, rounded.
    """
    last_start = length + padding - window
    if stride == 1:
        return last_start + 1
    rounded = sympy.ceiling if up else sympy.floor
    return rounded(last_start / stride) + 1


def iota(
    ctx: ConversionContext, length: Size, dtype: torch.dtype = torch.int64
) -> ITensor:
    """0, 1, ..., length - 1 as a 1-d ITensor."""
    if isinstance(length, int):
        return ctx.constant(torch.arange(length, dtype=dtype))
    return ctx.cast(counted(ctx, 0, 1, length, torch.int32), dtype)
