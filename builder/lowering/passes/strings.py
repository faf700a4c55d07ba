"""Fold string queries inside a model: nn.MultiheadAttention collects a reason in a string, and then
checks whether it is empty.
"""

from __future__ import annotations

from typing import Any

from builder.graph_types import Graph, Value
from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass


@lowering_pass("fold-string-lengths", touches=("aten::len",))
def fold_string_lengths(graph: Graph, context: Context) -> None:
    """Rewrite `len(s) > 0` to the condition under which s is not empty. A string with literal text
    in its format is never empty.
    """
    for node in ir.nodes_of(graph, "aten::gt"):
        length = node.inputsAt(0).node()
        is_length = (
            length.kind() == "aten::len"
            and length.inputsAt(0).type().kind() == "StringType"
        )
        if is_length and ir.constant(node.inputsAt(1)) == 0:
            is_filled = _filled(length.inputsAt(0))
            if isinstance(is_filled, bool):
                is_filled = ir.insert_constant(graph, is_filled, node)
            if is_filled is not None:
                ir.replace(node, [is_filled])


def _filled(value: Value) -> Any:
    """Whether a string is not empty: a bool, a bool value of the graph, or None if not known."""
    node = value.node()
    if ir.is_constant(value):
        return bool(value.toIValue())
    if node.kind() == "aten::format":
        if str(ir.constant(node.inputsAt(0)) or "").replace("{}", ""):
            return True
        return None
    if node.kind() != "prim::If":
        return None
    if_true, if_false = (
        _filled(list(block.outputs())[value.offset()]) for block in node.blocks()
    )
    if (if_true, if_false) == (True, False):
        return node.inputsAt(0)
    if isinstance(if_true, bool) and if_true is if_false:
        return if_true
    return None
