"""Splits along an axis: split, chunk, tensor_split, unbind."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch

from builder.conversion import scalars
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.select import (
    bound,
    length_between,
    select_index,
    sliced,
    static_length,
)
from builder.conversion.converters.shape import movedim
from builder.conversion.dynamic import DynamicScalar, Size, bounds
from builder.conversion.lists import TensorList
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Tensor
from builder.engine import ITensor
from builder.graph_types import Node


def split_at(
    ctx: ConversionContext, x: ITensor, axis: int, lengths: list[Size]
) -> list[ITensor]:
    """Consecutive parts of an axis."""
    start: Size = 0
    result = []
    for length in lengths:
        result.append(sliced(ctx, x, axis, start, length))
        start += length
    return result


@converter("aten::split.Tensor", "aten::unsafe_split.Tensor")
def split(
    ctx: ConversionContext, node: Node, x: ITensor, split_size: Size, dim: int
) -> list[ITensor]:
    """Parts of `split_size` values; the last has the remainder."""
    axis = ctx.axis(x, dim)
    return split_at(ctx, x, axis, _equal_parts(ctx, node, x, axis, split_size))


def _equal_parts(
    ctx: ConversionContext,
    node: Node,
    x: ITensor,
    axis: int,
    part_length: Size,
    expected: int | None = None,
) -> list[Size]:
    """The lengths of parts of `part_length` values. For a dynamic axis, the number of parts is the
    number that the model unpacks (or `expected`).
    """
    size = ctx.size(x, axis)
    if isinstance(size, int) and isinstance(part_length, int):
        if size:
            return [min(part_length, size - at) for at in range(0, size, part_length)]
        return [0]
    count = _unpacked(node) or expected
    if count is None:
        static_length(ctx, x, axis, node.kind())
        raise Unconvertible(
            "the size of the parts is dynamic, and so is the number of tensors"
        )
    before = part_length * (count - 1)
    return [*([part_length] * (count - 1)), size - before]


def _unpacked(node: Node) -> int | None:
    """The number of tensors that the only user of a node's list unpacks."""
    uses = node.output().uses()
    if len(uses) == 1 and uses[0].user.kind() == "prim::ListUnpack":
        return int(uses[0].user.outputsSize())
    return None


@converter(
    "aten::split.sizes",
    "aten::split",
    "aten::split_with_sizes",
    "aten::unsafe_split_with_sizes",
)
def split_with_sizes(
    ctx: ConversionContext, x: ITensor, sizes: list[Size], /, dim: int
) -> list[ITensor]:
    """Parts of the given sizes."""
    return split_at(ctx, x, ctx.axis(x, dim), sizes)


@converter("aten::chunk", "aten::unsafe_chunk")
def chunk(
    ctx: ConversionContext, node: Node, x: ITensor, chunks: int, dim: int
) -> list[ITensor]:
    """At most `chunks` parts of ceil(size / chunks) values each; the last has the remainder."""
    axis = ctx.axis(x, dim)
    if _count_is_read(node) and _may_be_fewer(ctx, ctx.size(x, axis), chunks):
        static_length(ctx, x, axis, f"{node.kind()}")
    rounded = ctx.size(x, axis) + (chunks - 1)
    part_length = rounded // chunks
    if part_length == 0:
        return [x] * chunks
    return split_at(ctx, x, axis, _equal_parts(ctx, node, x, axis, part_length, chunks))


def _count_is_read(node: Node) -> bool:
    """Whether the model uses the number of parts. It does not if it unpacks them, or reads them
    only by indices from the start: torch raises an error if a part is missing.
    """
    for use in node.output().uses():
        kind = use.user.kind()
        if kind == "aten::__getitem__":
            index = use.user.inputsAt(1).toIValue()
            if isinstance(index, int) and index >= 0:
                continue
        elif kind == "prim::ListUnpack":
            continue
        return True
    return False


def _may_be_fewer(ctx: ConversionContext, size: Size, chunks: int) -> bool:
    """Whether torch returns fewer than `chunks` parts for a size in the range of a dynamic axis,
    such as 3 parts of 2 for a size of 5 and 4 chunks.
    """
    if not isinstance(size, DynamicScalar):
        return False
    span = bounds(size.expr, ctx.ranges())
    if span is None or not all(map(math.isfinite, span)):
        return True
    low, high = (int(end) for end in span)
    if size.expr % chunks == 0:
        return low < chunks
    return low < 1 or _least_with_fewer(low, chunks) <= high


def _least_with_fewer(low: int, chunks: int) -> float:
    """The least size from `low` on with fewer than `chunks` parts, or inf. Sizes with parts of
    `part_length` values have fewer up to part_length (chunks - 1).
    """
    part_length = -(-low // chunks)
    if low <= part_length * (chunks - 1):
        return low
    if part_length + 1 < chunks:
        return part_length * chunks + 1
    return math.inf


@converter("aten::tensor_split.sections")
def tensor_split(
    ctx: ConversionContext, x: ITensor, sections: int, dim: int
) -> list[ITensor]:
    """`sections` parts, the first size % sections of them one longer than the others."""
    axis = ctx.axis(x, dim)
    size = ctx.size(x, axis)
    shorter = size // sections
    longer = scalars.modulo(ctx, size, sections)
    lengths = []
    for index in range(sections):
        extra = ctx.minimum(ctx.maximum(longer - index, 0), 1)
        lengths.append(shorter + extra)
    return split_at(ctx, x, axis, lengths)


@converter("aten::tensor_split.indices")
def tensor_split_at(
    ctx: ConversionContext, x: ITensor, indices: list[Size], dim: int
) -> list[ITensor]:
    """The parts between the indices, each as self[i:j] reads it."""
    axis = ctx.axis(x, dim)
    size = ctx.size(x, axis)
    bounds = [0, *(bound(ctx, index, size, size) for index in indices), size]
    return [
        sliced(ctx, x, axis, first, length_between(ctx, first, last, 1))
        for first, last in pairwise(bounds)
    ]


@converter("aten::tensor_split.tensor_indices_or_sections")
def tensor_split_tensor(
    ctx: ConversionContext, x: ITensor, tensor_indices_or_sections: Tensor, dim: int
) -> list[ITensor]:
    """tensor_split with its sections (0-d) or indices (1-d) in a tensor"""
    if not isinstance(tensor_indices_or_sections, torch.Tensor):
        raise Unconvertible("the positions of the split are known only at run time")
    values = tensor_indices_or_sections.tolist()
    split_by = tensor_split_at if isinstance(values, list) else tensor_split
    return list(split_by(ctx, x, values, dim))


@for_each(("hsplit", 1), ("vsplit", 0), ("dsplit", 2))
def _register_axis_split(name: str, axis: int) -> None:
    def dim(ctx: ConversionContext, x: ITensor) -> int:
        if ctx.rank(x) == 1:
            return 0
        return axis

    @converter(f"aten::{name}.int")
    def sections(ctx: ConversionContext, x: ITensor, sections: int) -> list[ITensor]:
        """tensor_split of a fixed axis"""
        return list(tensor_split(ctx, x, sections, dim(ctx, x)))

    @converter(f"aten::{name}.array")
    def array(ctx: ConversionContext, x: ITensor, indices: list[Size]) -> list[ITensor]:
        """tensor_split of a fixed axis"""
        return list(tensor_split_at(ctx, x, indices, dim(ctx, x)))


@converter("aten::unbind.int")
def unbind(ctx: ConversionContext, x: ITensor, dim: int) -> list[Any] | TensorList:
    """The slices of an axis, without it. For a dynamic axis, a list that loops may read."""
    axis = ctx.axis(x, dim)
    length = ctx.size(x, axis)
    if isinstance(length, int):
        return [select_index(ctx, x, axis, index) for index in range(length)]
    return TensorList([], movedim(ctx, x, axis, 0), length)
