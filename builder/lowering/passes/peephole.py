"""Small patterns that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass

_BOOLEAN = frozenset(
    f"aten::{name}"
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "isnan")
)


def _same_axes(node: Any, inner: Any) -> bool:
    """Whether a transpose swaps back what the inner one swapped: the very same axes, in either
    order.
    """
    outer, before = ([ir.constant(value) for value in ir.inputs(n)[1:]] for n in (node, inner))
    return None not in outer and sorted(outer) == sorted(before)


def _inverse_order(node: Any, inner: Any) -> bool:
    outer, before = ir.int_list(node.inputsAt(1)), ir.int_list(inner.inputsAt(1))
    if outer is None or before is None or len(outer) != len(before):
        return False
    rank = len(outer)
    return [before[axis % rank] % rank for axis in outer] == list(range(rank))


def _of_booleans(node: Any, inner: Any) -> bool:
    return inner.inputsAt(0).node().kind() in _BOOLEAN


def _always(node: Any, inner: Any) -> bool:
    return True


# Twice the same operator gives the input back, where the condition holds.
_TWICE: dict[str, Callable[[Any, Any], bool]] = {
    "aten::t": _always,
    "aten::__not__": _always,
    "aten::neg": _always,
    "aten::logical_not": _of_booleans,
    "aten::transpose": _same_axes,
    "aten::permute": _inverse_order,
}


def _keeps_all(node: Any) -> bool:
    """An expand to -1 everywhere keeps every axis as it is; a longer list would add axes, and -1 is
    not allowed there.
    """
    sizes = ir.int_list(node.inputsAt(1))
    return sizes is not None and all(size == -1 for size in sizes)


@lowering_pass("peephole", touches=(*_TWICE, "aten::expand", "aten::reshape"))
def peephole(graph: Any, context: Context) -> None:
    """Remove what changes nothing: `x.t().t()`, two transposes or permutations that undo each
    other, two negations, an expand to -1, and a reshape whose result is only reshaped.
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
