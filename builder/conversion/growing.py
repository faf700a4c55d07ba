"""Lists that a loop of the engine makes longer by a tensor each trip, as hand-written recurrent layers do.

Within the loop nobody reads such a list; behind it stands what the trips appended, gathered along a new first axis
(ILoopOutputLayer with CONCATENATE), and the few operators that read a list of unknown length are answered of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import Size


@dataclass(frozen=True, eq=False)
class Grown:
    """`front`: the tensors that the list began with; `rows` [count, ...]: what `count` trips appended."""

    front: list[Any]
    rows: Any
    count: Size


def is_grown(values: list[Any]) -> bool:
    """Whether one of a node's inputs is such a list."""
    return any(isinstance(value, Grown) for value in values)


def answer(ctx: ConversionContext, node: Any, key: str, values: list[Any]) -> Any:
    """The result of a node that reads such a list. Raises Unconvertible."""
    question = _QUESTIONS.get(key)
    if question is None or not isinstance(values[0], Grown):
        fix = "torch.stack or torch.cat it first"
        raise Unconvertible(f"{node.kind()} reads a list that a loop of unknown length has made longer", fix)
    return question(ctx, *values)


def _stack(ctx: ConversionContext, grown: Grown, dim: int) -> Any:
    from builder.conversion.converters.joining import joined, new_axis

    axis = dim % ctx.rank(grown.rows)
    rows = _with_first_at(ctx, grown.rows, axis)
    return joined(ctx, [*(new_axis(ctx, tensor, axis) for tensor in grown.front), rows], axis)


def _cat(ctx: ConversionContext, grown: Grown, dim: int) -> Any:
    from builder.conversion.converters.joining import joined

    if ctx.rank(grown.rows) == 1:
        raise Unconvertible("zero-dimensional tensors cannot be concatenated")
    axis = dim % (ctx.rank(grown.rows) - 1)
    rows = _with_first_at(ctx, grown.rows, axis)
    sizes = ctx.sizes(rows)
    both = ctx.arithmetic("mul", sizes[axis], sizes[axis + 1])
    return joined(ctx, [*grown.front, ctx.reshape(rows, [*sizes[:axis], both, *sizes[axis + 2 :]])], axis)


def _with_first_at(ctx: ConversionContext, rows: Any, axis: int) -> Any:
    order = list(range(1, ctx.rank(rows)))
    return ctx.permute(rows, [*order[:axis], 0, *order[axis:]]) if axis else rows


def _item(ctx: ConversionContext, grown: Grown, index: Size) -> Any:
    from builder.conversion.converters.select import position, taken

    if not grown.front:
        return taken(ctx, grown.rows, 0, position(ctx, index, grown.count))
    if isinstance(index, int) and 0 <= index < len(grown.front):
        return grown.front[index]
    raise Unconvertible("a list that a loop has made longer is read behind what it began with", "torch.stack it first")


_QUESTIONS: dict[str, Callable[..., Any]] = {
    "aten::stack": _stack,
    "aten::cat": _cat,
    "aten::__getitem__.t": _item,
    "aten::len.t": lambda ctx, grown: ctx.arithmetic("add", grown.count, len(grown.front)),
}
