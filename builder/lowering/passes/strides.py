"""Refuse to read a tensor by its memory layout if passes or an engine may change the layout."""

from __future__ import annotations

from builder.errors import LoweringError
from builder.graph_types import Graph, Value
from builder.lowering import ir
from builder.lowering.locations import source_line
from builder.lowering.passes import Context, lowering_pass

STRIDE_READERS = ("aten::as_strided", "aten::stride")
"""Operators that read the memory layout of a tensor."""
_SAME_LAYOUT = frozenset(
    f"aten::{name}"
    for name in """
        view reshape flatten unflatten unsqueeze squeeze contiguous detach alias
    """.split()
)
"""Operators that return contiguous memory for contiguous memory."""


@lowering_pass("refuse-strides", touches=STRIDE_READERS)
def refuse_strides(graph: Graph, context: Context) -> None:
    """Refuse as_strided and stride of a computed tensor: its memory layout may be another one in an
    engine, and passes remove contiguous. Inputs of the model are contiguous.
    """
    inputs = {value.debugName() for value in graph.inputs()}
    for node in ir.nodes_of(graph, *STRIDE_READERS):
        if not _is_input(node.inputsAt(0), inputs):
            name = node.kind().removeprefix("aten::")
            raise LoweringError(
                f"{name} reads the memory layout of a computed tensor, which an engine may change",
                where=source_line(node),
                fix="use reshape, unfold or index_select, or call it on an input of the model",
            )


def _is_input(value: Value, inputs: set[str]) -> bool:
    """Whether a value is a constant or an input, or a view of one with the same layout."""
    while value.node().kind() in _SAME_LAYOUT:
        value = value.node().inputsAt(0)
    return value.node().kind() == "prim::Constant" or value.debugName() in inputs
