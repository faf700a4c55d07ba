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
            known = _filled(length.inputsAt(0))
            if isinstance(known, bool):
                known = ir.insert_constant(graph, known, node)
            if known is not None:
                ir.replace(node, [known])


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
    one, other = (
        _filled(list(block.outputs())[value.offset()]) for block in node.blocks()
    )
    if (one, other) == (True, False):
        return node.inputsAt(0)
    if isinstance(one, bool) and one is other:
        return one
    return None
