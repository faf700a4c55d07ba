"""The axis order after operators that only move axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from builder.graph_types import Node
from builder.lowering import ir

Axis = TypeVar("Axis")
MOVES = ("aten::transpose", "aten::permute")


def moved(node: Node, axes: Sequence[Axis]) -> list[Axis] | None:
    """The axes after an operator of MOVES on a tensor with these axes; None if its arguments are
    not known.
    """
    if node.kind() == "aten::permute":
        order = ir.int_list(node.inputsAt(1))
        if order is None:
            return None
        return [axes[axis] for axis in order]
    first = axis_at(node, 1, len(axes))
    second = axis_at(node, 2, len(axes))
    if first is None or second is None:
        return None
    result = list(axes)
    result[first], result[second] = axes[second], axes[first]
    return result


def axis_at(node: Node, at: int, rank: int) -> int | None:
    """The axis that input `at` names, counted from the front; None if it is not known."""
    axis = ir.constant(node.inputsAt(at))
    if isinstance(axis, int) and -rank <= axis < rank:
        return axis % rank
    return None
