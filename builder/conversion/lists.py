"""Lists of tensors whose length is known only at run time: tensors that a loop appends, and the
slices of a dynamic axis, as in hand-written recurrent layers.

Such a list is one tensor whose first axis counts its elements (for a loop, the output of
ILoopOutputLayer). A few operators can read such a list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import Size, expression
from builder.conversion.values import Tensor
from builder.engine import ITensor
from builder.graph_types import Node, Use, Value


@dataclass(frozen=True, eq=False)
class TensorList:
    """`front`: the first tensors of the list; `rows` [count, ...]: the `count` tensors that
    follow.
    """

    front: list[Any]
    rows: Any
    count: Size


class RecentElements(list[Any]):
    """The last elements of a list, in a loop that appends one element per iteration. `front` are
    the elements before the loop, and `length` the number of elements in this iteration, if known.
    """

    front: list[Any]
    length: Any = None

    def at(self, index: Size) -> Any:
        """The element at an index. Raises Unconvertible if it is not one of these."""
        if isinstance(index, int) and 0 <= index < len(self.front):
            return self.front[index]
        distance: Size | None = index
        if not isinstance(index, int) or index >= 0:
            distance = self._from_the_end(index)
        if not isinstance(distance, int) or not -len(self) <= distance < 0:
            raise Unconvertible(
                "a loop with a dynamic trip count reads an element of a list to which it appends,"
                " and it is not one of the last that the list had before the loop",
                "keep the element in a variable of its own",
            )
        return self[distance]

    def _from_the_end(self, index: Size) -> int | None:
        """The index, from the end of the list, if it is the same in all iterations."""
        if self.length is None:
            return None
        distance = sympy.expand(expression(index) - self.length)
        return int(distance) if distance.is_Integer else None


def recent_reads(parameter: Value, output: Value, length: int) -> int:
    """How many of its last elements a loop may read of a list to which it appends, which has
    `length` elements before the loop. `parameter` is the list in the body, `output` the list after
    the append. 0 if the body uses the list in another way.
    """
    before = [use for use in parameter.uses() if not _is(use.user, output.node())]
    after = [use for use in output.uses() if use.user.kind() != "prim::Return"]
    one_append = len(before) == len(parameter.uses()) - 1
    returned_once = len(after) == len(output.uses()) - 1
    if not (one_append and returned_once and all(map(_gets_item, [*before, *after]))):
        return 0
    appended = [_constant_index(use.user) for use in after]
    if any(index is None or index >= 0 for index in appended):
        return 0
    indices = [_constant_index(use.user) for use in before]
    depths = [-index - 1 for index in appended if index is not None]
    depths += [
        length if index is None or index >= 0 else -index  # an index of the counter
        for index in indices
    ]
    return max(1, *depths) if max(1, *depths) <= length else 0


def _is(node: Node, other: Node) -> bool:
    return (
        node.output().debugName() == other.output().debugName()
        if (node.outputsSize() == other.outputsSize() == 1)
        else False
    )


def _gets_item(use: Use) -> bool:
    return use.user.kind() == "aten::__getitem__" and use.offset == 0


def _constant_index(node: Node) -> int | None:
    index = node.inputsAt(1)
    return index.toIValue() if index.node().kind() == "prim::Constant" else None


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


def element(
    ctx: ConversionContext, index: Size, count: Size, *parts: list[Tensor] | ITensor
) -> ITensor:
    """The element of a list at an index that the network may compute. The list has `count` tensors,
    in `parts` as for `as_rows`.
    """
    from builder.conversion.converters.select import position, select_index

    rows = as_rows(ctx, *parts)
    return select_index(ctx, rows, 0, position(ctx, index, count))


def as_rows(ctx: ConversionContext, *parts: list[Tensor] | ITensor) -> ITensor:
    """[count, ...] of the tensors in lists and of rows [n, ...], in this order. Raises
    Unconvertible if they are not known to have the same dtype and sizes.
    """
    from builder.conversion.converters.joining import joined, new_axis

    rows: list[Tensor] = []
    for part in parts:
        if isinstance(part, list):
            rows += [new_axis(ctx, tensor, 0) for tensor in part]
        else:
            rows.append(part)
    if len({(ctx.dtype(row), *ctx.exprs(row)[1:]) for row in rows}) > 1:
        raise Unconvertible(
            "a list is read by a position that is not known while the network is built, and its"
            " tensors may have different dtypes or sizes",
            "torch.stack it first",
        )
    return joined(ctx, rows, 0)


def _item(ctx: ConversionContext, tensors: TensorList, index: Size) -> Any:
    if isinstance(index, int) and 0 <= index < len(tensors.front):
        return tensors.front[index]
    count = tensors.count + len(tensors.front)
    return element(ctx, index, count, tensors.front, tensors.rows)


def _slice(
    ctx: ConversionContext, tensors: TensorList, start: Any, end: int | None, step: int
) -> TensorList:
    from builder.conversion.converters.arranging import flipped
    from builder.conversion.converters.select import slice_

    rows = as_rows(ctx, tensors.front, tensors.rows)
    if start is None and end is None and step == -1:
        count = tensors.count + len(tensors.front)
        return TensorList([], flipped(ctx, rows, [0]), count)
    if not isinstance(step, int) or step < 1:
        raise Unconvertible(
            "a slice of a list has a negative step", "reverse the whole list: [::-1]"
        )
    rows = slice_(ctx, rows, 0, start, end, step)
    return TensorList([], rows, ctx.size(rows, 0))


_QUESTIONS: dict[str, Callable[..., Any]] = {
    "aten::stack": _stack,
    "aten::cat": cat,
    "aten::__getitem__.t": _item,
    "aten::slice.t": _slice,
    "aten::list.t": lambda ctx, tensors: tensors,
    "aten::len.t": lambda ctx, tensors: tensors.count + len(tensors.front),
}
