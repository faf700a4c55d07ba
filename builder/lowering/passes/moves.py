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
    one = axis_at(node, 1, len(axes))
    other = axis_at(node, 2, len(axes))
    if one is None or other is None:
        return None
    found = list(axes)
    found[one], found[other] = axes[other], axes[one]
    return found


def axis_at(node: Node, at: int, rank: int) -> int | None:
    """The axis that input `at` names, counted from the front; None if it is not known."""
    axis = ir.constant(node.inputsAt(at))
    if isinstance(axis, int) and -rank <= axis < rank:
        return axis % rank
    return None
