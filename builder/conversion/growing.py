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
    return question(ctx, node, *values)


def _stack(ctx: ConversionContext, node: Any, grown: Grown, dim: int) -> Any:
    from builder.conversion.converters.joining import joined, new_axis
    from builder.conversion.converters.shape import movedim

    axis = dim % ctx.rank(grown.rows)
    rows = movedim(ctx, node, grown.rows, 0, axis)
    return joined(ctx, [*(new_axis(ctx, tensor, axis) for tensor in grown.front), rows], axis)


def _cat(ctx: ConversionContext, node: Any, grown: Grown, dim: int) -> Any:
    from builder.conversion.converters.joining import joined
    from builder.conversion.converters.shape import merged, movedim

    if ctx.rank(grown.rows) == 1:
        raise Unconvertible("zero-dimensional tensors cannot be concatenated")
    axis = dim % (ctx.rank(grown.rows) - 1)
    rows = merged(ctx, movedim(ctx, node, grown.rows, 0, axis), axis, axis + 1)
    return joined(ctx, [*grown.front, rows], axis)


def _item(ctx: ConversionContext, node: Any, grown: Grown, index: Size) -> Any:
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
    "aten::len.t": lambda ctx, node, grown: ctx.arithmetic("add", grown.count, len(grown.front)),
}
