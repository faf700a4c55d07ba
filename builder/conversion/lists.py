"""Lists of tensors whose length is known only at run time: tensors that a loop appends, and the
slices of a dynamic axis, as in hand-written recurrent layers.

Such a list is one tensor whose first axis counts its elements (for a loop, the output of
ILoopOutputLayer). A few operators can read such a list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import Size
from builder.engine import ITensor
from builder.graph_types import Node


@dataclass(frozen=True, eq=False)
class TensorList:
    """`front`: the first tensors of the list; `rows` [count, ...]: the `count` tensors that
    follow.
    """

    front: list[Any]
    rows: Any
    count: Size


def is_list(values: list[Any]) -> bool:
    """Whether one of a node's inputs is such a list."""
    return any(isinstance(value, TensorList) for value in values)


def result(ctx: ConversionContext, node: Node, key: str, values: list[Any]) -> Any:
    """The result of a node that reads such a list. Raises Unconvertible."""
    question = _QUESTIONS.get(key)
    if question is None or not isinstance(values[0], TensorList):
        fix = (
            "torch.stack or torch.cat it first, or give the axis one size in the manifest: min ="
            " opt = max"
        )
        raise Unconvertible(
            f"{node.kind()} reads a list whose length is known only at run time", fix
        )
    return question(ctx, *values)


def _stack(ctx: ConversionContext, tensors: TensorList, dim: int) -> ITensor:
    from builder.conversion.converters.joining import joined, new_axis
    from builder.conversion.converters.shape import movedim

    axis = dim % ctx.rank(tensors.rows)
    rows = movedim(ctx, tensors.rows, 0, axis)
    return joined(
        ctx, [*(new_axis(ctx, tensor, axis) for tensor in tensors.front), rows], axis
    )


def cat(ctx: ConversionContext, tensors: TensorList, dim: int) -> ITensor:
    """torch.cat of the elements of a TensorList."""
    from builder.conversion.converters.joining import joined
    from builder.conversion.converters.shape import merged, movedim

    if ctx.rank(tensors.rows) == 1:
        raise Unconvertible("zero-dimensional tensors cannot be concatenated")
    axis = dim % (ctx.rank(tensors.rows) - 1)
    rows = merged(ctx, movedim(ctx, tensors.rows, 0, axis), axis, axis + 1)
    return joined(ctx, [*tensors.front, rows], axis)


def _item(ctx: ConversionContext, tensors: TensorList, index: Size) -> Any:
    from builder.conversion.converters.select import position, select_index

    if not tensors.front:
        return select_index(ctx, tensors.rows, 0, position(ctx, index, tensors.count))
    if isinstance(index, int) and 0 <= index < len(tensors.front):
        return tensors.front[index]
    raise Unconvertible(
        "an element that a loop appended to a list is read by its index",
        "torch.stack it first",
    )


def _slice(
    ctx: ConversionContext, tensors: TensorList, start: Any, end: int | None, step: int
) -> TensorList:
    from builder.conversion.converters.arranging import flipped
    from builder.conversion.converters.select import slice_

    if tensors.front:
        raise Unconvertible(
            "a slice of a list that a loop appended to is read", "torch.stack it first"
        )
    if start is None and end is None and step == -1:
        return TensorList([], flipped(ctx, tensors.rows, [0]), tensors.count)
    if not isinstance(step, int) or step < 1:
        raise Unconvertible(
            "a slice of a list has a negative step", "reverse the whole list: [::-1]"
        )
    rows = slice_(ctx, tensors.rows, 0, start, end, step)
    return TensorList([], rows, ctx.size(rows, 0))


_QUESTIONS: dict[str, Callable[..., Any]] = {
    "aten::stack": _stack,
    "aten::cat": cat,
    "aten::__getitem__.t": _item,
    "aten::slice.t": _slice,
    "aten::list.t": lambda ctx, tensors: tensors,
    "aten::len.t": lambda ctx, tensors: tensors.count + len(tensors.front),
}
