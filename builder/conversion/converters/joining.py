"""Operators that join tensors: cat, stack and related operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dtypes import promote
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Tensor
from builder.engine import ITensor


def joined(ctx: ConversionContext, tensors: Sequence[Tensor], axis: int) -> ITensor:
    """One IConcatenationLayer on the tensors in their promoted dtype; a single tensor is returned
    unchanged.
    """
    dtype = promote(
        *(
            (ctx.dtype(tensor), "dimensioned" if ctx.rank(tensor) else "zero-dim")
            for tensor in tensors
        )
    )
    parts = [ctx.tensor(tensor, dtype) for tensor in tensors]
    if len(parts) == 1:
        return parts[0]
    return ctx.concatenate(parts, axis)


def _cat(ctx: ConversionContext, tensors: list[Tensor], dim: int) -> ITensor:
    """The concatenated tensors; an empty vector may occur among tensors of any rank, and takes part
    in promotion.
    """
    rank = max(ctx.rank(tensor) for tensor in tensors)
    if rank == 0:
        raise Unconvertible("zero-dimensional tensors cannot be concatenated")
    dtype = promote(*((ctx.dtype(tensor), "dimensioned") for tensor in tensors))
    full = [tensor for tensor in tensors if ctx.rank(tensor) == rank]
    axis = ctx.axis(full[0], dim)
    nonempty = [tensor for tensor in full if tensor.shape[axis] != 0] or full[:1]
    return joined(ctx, [ctx.tensor(tensor, dtype) for tensor in nonempty], axis)


for _name in ("cat", "concat", "concatenate"):
    converter(f"aten::{_name}")(_cat)


@converter("aten::stack")
def stack(ctx: ConversionContext, tensors: list[Tensor], dim: int) -> ITensor:
    """The tensors along a new axis."""
    axis = dim % (ctx.rank(tensors[0]) + 1)
    return joined(ctx, [new_axis(ctx, tensor, axis) for tensor in tensors], axis)


def new_axis(ctx: ConversionContext, x: Tensor, axis: int) -> Any:
    """x with an axis of size 1; a static tensor stays static."""
    if isinstance(x, torch.Tensor):
        return x.unsqueeze(axis)
    return ctx.unsqueeze(x, [axis])


def at_least_rank(ctx: ConversionContext, x: Tensor, rank: int) -> Any:
    """torch.atleast_1d, _2d or _3d: leading axes of size 1; atleast_3d also appends one to tensors
    with one or two axes.
    """
    current = ctx.rank(x)
    if current >= rank:
        return x
    axes = list(range(rank - current))
    if rank == 3 and current:
        axes = [0, 2] if current == 1 else [2]
    for axis in axes:
        x = new_axis(ctx, x, axis)
    return x


@for_each(1, 2, 3)
def _register_atleast(rank: int) -> None:
    @converter(f"aten::atleast_{rank}d")
    def one(ctx: ConversionContext, x: ITensor) -> Any:
        """Axes of size 1 up to this rank"""
        return at_least_rank(ctx, x, rank)

    @converter(f"aten::atleast_{rank}d.Sequence")
    def several(ctx: ConversionContext, tensors: list[ITensor]) -> list[ITensor]:
        """Axes of size 1 up to this rank, of each tensor"""
        return [at_least_rank(ctx, tensor, rank) for tensor in tensors]


@for_each(("hstack", 1, 1), ("vstack", 2, 0), ("row_stack", 2, 0), ("dstack", 3, 2))
def _register_stack(name: str, rank: int, axis: int) -> None:
    @converter(f"aten::{name}")
    def stacked(ctx: ConversionContext, tensors: list[Tensor]) -> ITensor:
        """The concatenated tensors, after atleast_1d, _2d or _3d"""
        parts = [at_least_rank(ctx, tensor, rank) for tensor in tensors]
        return joined(ctx, parts, 0 if ctx.rank(parts[0]) == 1 else axis)


@converter("aten::column_stack")
def column_stack(ctx: ConversionContext, tensors: list[Tensor]) -> ITensor:
    """Concatenate columns; vectors and numbers become columns."""
    columns = []
    for tensor in tensors:
        if ctx.rank(tensor) <= 1:
            tensor = new_axis(ctx, at_least_rank(ctx, tensor, 1), 1)
        columns.append(tensor)
    return joined(ctx, columns, 1)
