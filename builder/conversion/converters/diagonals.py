"""Diagonals and triangles of matrices; on the flat matrix a diagonal is a slice with steps of width
+ 1.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.joining import at_least_rank, joined
from builder.conversion.converters.padding import padded
from builder.conversion.converters.select import sliced, static_length
from builder.conversion.converters.shape import permuted
from builder.conversion.dynamic import Size
from builder.conversion.evaluators.creation import counted, indices
from builder.conversion.layers import copy_facts, gathered
from builder.conversion.registry import converter
from builder.engine import ITensor


def matrix_last(
    ctx: ConversionContext, x: ITensor, first: int, second: int
) -> tuple[Any, list[int]]:
    """x with two axes moved to the end, and the permutation that restores the order."""
    first = ctx.axis(x, first)
    second = ctx.axis(x, second)
    order = [
        *(axis for axis in range(ctx.rank(x)) if axis not in (first, second)),
        first,
        second,
    ]
    return permuted(ctx, x, order), [order.index(axis) for axis in range(len(order))]


def diagonal_span(
    ctx: ConversionContext, height: Size, width: Size, offset: int
) -> tuple[Size, Size]:
    """The start of a diagonal in the flat matrix, and its length."""
    below = height - max(-offset, 0)
    right = width - max(offset, 0)
    length = ctx.maximum(ctx.minimum(below, right), 0)
    start = offset if offset >= 0 else width * -offset
    return (0 if length == 0 else start), length


@converter("aten::diagonal")
def diagonal(
    ctx: ConversionContext, x: ITensor, offset: int, dim1: int, dim2: int
) -> ITensor:
    """The values at row i, column i + offset of the matrix of two axes, as a new last axis"""
    x, _ = matrix_last(ctx, x, dim1, dim2)
    *lead, height, width = ctx.sizes(x)
    start, length = diagonal_span(ctx, height, width, offset)
    flat = ctx.reshape(x, [*lead, height * width])
    return sliced(ctx, flat, len(lead), start, length, width + 1)


@converter("aten::diag_embed")
def diag_embed(
    ctx: ConversionContext, x: ITensor, offset: int, dim1: int, dim2: int
) -> ITensor:
    """The last axis as a diagonal of a square matrix of zeros, which has the axes dim1 and dim2"""
    *lead, length = ctx.sizes(x)
    side = length + abs(offset)
    # rows of side + 1 shift by one each
    wide = padded(ctx, ctx.unsqueeze(x, [len(lead) + 1]), [0, side], "constant")
    count = length * (side + 1)
    flat = ctx.reshape(wide, [*lead, count])
    start, _ = diagonal_span(ctx, side, side, offset)
    area = side * side
    filled = start + ctx.size(flat, len(lead))
    padding_after = area - filled
    square = ctx.reshape(
        padded(ctx, flat, [start, padding_after], "constant"), [*lead, side, side]
    )
    rank = len(lead) + 2
    return permuted(ctx, square, _inserted(rank, dim1 % rank, dim2 % rank))


def _inserted(rank: int, first: int, second: int) -> list[int]:
    """The permutation that moves the last two axes to two positions."""
    order = list(range(rank - 2))
    for axis, source in sorted([(first, rank - 2), (second, rank - 1)]):
        order.insert(axis, source)
    return order


@converter("aten::diag")
def diag(ctx: ConversionContext, x: ITensor, offset: int, /) -> Any:
    """A vector as the diagonal of a matrix; of a matrix, its diagonal"""
    if ctx.rank(x) == 1:
        return diag_embed(ctx, x, offset, 0, 1)
    return diagonal(ctx, x, offset, 0, 1)


def left_of(ctx: ConversionContext, x: ITensor, offset: Size) -> ITensor:
    """[.., H, W] bools of the rank of x: true if the column is less than the row plus offset."""
    height, width = ctx.sizes(x)[-2:]
    rank = ctx.rank(x)
    if isinstance(height, int) and isinstance(width, int) and isinstance(offset, int):
        mask = torch.ones(height, width, dtype=torch.bool).tril(offset - 1)
        return ctx.at_rank(mask, rank)
    rows = ctx.unsqueeze(counted(ctx, offset, 1, height, torch.int64), [1])
    columns = ctx.unsqueeze(ctx.cast(indices(ctx, width), torch.int64), [0])
    computed = ctx.set_sizes(ctx.elementwise("LESS", columns, rows), [height, width])
    return ctx.at_rank(computed, rank)


def _zeros(ctx: ConversionContext, x: ITensor) -> ITensor:
    return ctx.like_scalar(x, 0)


@converter("aten::tril")
def tril(ctx: ConversionContext, x: ITensor, diagonal: Size) -> ITensor:
    """x where column <= row + diagonal, else 0"""
    mask = left_of(ctx, x, diagonal + 1)
    return _selected(ctx, x, mask, x, _zeros(ctx, x))


@converter("aten::triu")
def triu(ctx: ConversionContext, x: ITensor, diagonal: Size) -> ITensor:
    """x where column >= row + diagonal, else 0"""
    return _selected(ctx, x, left_of(ctx, x, diagonal), _zeros(ctx, x), x)


def _splat(ctx: ConversionContext, tensor: ITensor) -> ITensor:
    """The element of a constant-filled tensor; otherwise the tensor."""
    element = ctx.facts(tensor).splat
    if element is None:
        return tensor
    return element


def _selected(
    ctx: ConversionContext, x: ITensor, mask: ITensor, a: ITensor, b: ITensor
) -> ITensor:
    """Select a or b. A matrix of one value is not expanded, because the mask has the full size. (An
    engine returned finite numbers for a select with an expanded -inf.)
    """
    if ctx.rank(x) == 2:
        a = _splat(ctx, a)
        b = _splat(ctx, b)
    result = ctx.net.add_select(mask, a, b).get_output(0)
    return copy_facts(ctx, x, result)


@converter("aten::combinations")
def combinations(
    ctx: ConversionContext, x: ITensor, r: int, with_replacement: bool
) -> ITensor:
    """[n] -> [n over r, r], in the order of itertools.combinations"""
    choose = (
        itertools.combinations_with_replacement
        if with_replacement
        else itertools.combinations
    )
    length = static_length(ctx, x, 0, "combinations")
    if r == 0:
        raise Unconvertible("combinations of 0 elements is an empty tensor")
    combinations = torch.tensor(
        list(choose(range(length), r)), dtype=torch.int64
    ).reshape(-1, r)
    return gathered(ctx, x, combinations, 0)


@converter("aten::block_diag")
def block_diag(ctx: ConversionContext, tensors: list[ITensor]) -> ITensor:
    """A block-diagonal matrix of the inputs; vectors are rows"""
    matrices = [at_least_rank(ctx, tensor, 2) for tensor in tensors]
    width = sum(ctx.size(matrix, 1) for matrix in matrices)
    rows = []
    before = 0
    for matrix in matrices:
        columns = ctx.size(matrix, 1)
        after = width - before - columns
        rows.append(padded(ctx, matrix, [before, after], "constant"))
        before += columns
    return joined(ctx, rows, 0)
