"""Remove small patterns without effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builder.graph_types import Graph, Node
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass

_BOOLEAN = frozenset(
    f"aten::{name}"
    for name in (
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "isnan",
    )
)


def _same_axes(node: Node, inner: Node) -> bool:
    """Whether a transpose swaps the same axes as the inner one, in either order."""
    outer = [ir.constant(value) for value in ir.inputs(node)[1:]]
    before = [ir.constant(value) for value in ir.inputs(inner)[1:]]
    return None not in outer and sorted(outer) == sorted(before)


def _inverse_order(node: Node, inner: Node) -> bool:
    outer = ir.int_list(node.inputsAt(1))
    before = ir.int_list(inner.inputsAt(1))
    if outer is None or before is None or len(outer) != len(before):
        return False
    rank = len(outer)
    return [before[axis % rank] % rank for axis in outer] == list(range(rank))


def _of_booleans(node: Node, inner: Any) -> bool:
    return inner.inputsAt(0).node().kind() in _BOOLEAN


def _always(node: Node, inner: Node) -> bool:
    return True


# Operators whose double application returns the input, if the condition holds.
_TWICE: dict[str, Callable[[Any, Any], bool]] = {
    "aten::t": _always,
    "aten::__not__": _always,
    "aten::neg": _always,
    "aten::logical_not": _of_booleans,
    "aten::transpose": _same_axes,
    "aten::permute": _inverse_order,
}


def _keeps_all(node: Node) -> bool:
    """An expand to -1 everywhere keeps every axis as it is; a longer list would add axes, and -1 is
    not allowed there.
    """
    sizes = ir.int_list(node.inputsAt(1))
    return sizes is not None and all(size == -1 for size in sizes)


def _joined(node: Node) -> list[Any] | None:
    """The inputs of `cat`, with an inner `cat` along the same axis replaced by its inputs if it has
    no other user; None if there is no such inner `cat`.
    """
    items = ir.list_items(node.inputsAt(0)) or []
    axis = ir.constant(node.inputsAt(1))
    joined: list[Any] = []
    for item in items:
        inner = item.node()
        parts = None
        if inner.kind() == "aten::cat":
            parts = ir.list_items(inner.inputsAt(0))
        if (
            axis is not None
            and parts is not None
            and ir.constant(inner.inputsAt(1)) == axis
            and len(item.uses()) == 1
            and inner.owningBlock() == node.owningBlock()
            and not ir.in_fallback(inner)
        ):
            joined += parts
        else:
            joined.append(item)
    if len(joined) > len(items):
        return joined
    return None


def _join_once(graph: Graph, node: Node) -> None:
    parts = None if ir.in_fallback(node) else _joined(node)
    if parts is not None:
        emit = Emit(graph, node)
        node.replaceInput(0, emit.list(parts, ir.TENSOR))


@lowering_pass(
    "peephole", touches=(*_TWICE, "aten::expand", "aten::reshape", "aten::cat")
)
def peephole(graph: Graph, context: Context) -> None:
    """Remove operators without effect: `x.t().t()`, two transposes or permutations that undo each
    other, two negations, an expand to -1, a reshape whose result is only reshaped, and a `cat`
    whose result is only joined along the same axis.
    """
    for node in ir.nodes_of(graph, *context.present(*_TWICE)):
        inner = node.inputsAt(0).node()
        if inner.kind() == node.kind() and _TWICE[node.kind()](node, inner):
            ir.replace(node, [inner.inputsAt(0)])
    for node in ir.nodes_of(graph, *context.present("aten::expand")):
        if _keeps_all(node):
            ir.bypass(node)
    for node in ir.nodes_of(graph, *context.present("aten::reshape")):
        inner = node.inputsAt(0).node()
        if (
            inner.kind() == "aten::reshape"
            and not ir.in_fallback(inner)
            and not ir.in_fallback(node)
        ):
            node.replaceInput(0, inner.inputsAt(0))
    for node in ir.nodes_of(graph, *context.present("aten::cat")):
        _join_once(graph, node)
