"""Functionalization: replace in-place writes, so that no operator writes memory that another value
may share.
"""

from __future__ import annotations

from builder.graph_types import Graph, Node
from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.dtypes import input_facts
from builder.lowering.passes.functionalize.containers import BUILDERS
from builder.lowering.passes.functionalize.sharing import resolve_casts, writes
from builder.lowering.passes.functionalize.walk import Walk


@lowering_pass("functionalize")
def functionalize(graph: Graph, context: Context) -> None:
    """Replace every in-place write by a new value, which later readers of that memory use.

    This covers slice assignment, `copy_`, `fill_`, `zero_`, `index_put_`, `masked_fill_`,
    `scatter_`, every operator with a functional variant (the dtype of the written tensor is kept),
    and changes of lists and dictionaries. A write to a view also changes its base and the other
    views. A write in a branch or a loop becomes an output of it. If it cannot be determined which
    values share the memory, and it is read later, a LoweringError names the source line.
    """
    if any(
        writes(node) or node.kind() in BUILDERS or _nested(node)
        for node in ir.walk(graph)
    ):
        resolve_casts(graph, input_facts(graph, context))
        Walk(graph, context.unroll_limit).run()


def _nested(node: Node) -> bool:
    """Whether a list, tuple or dictionary is read from a dictionary."""
    return (
        node.kind() == "aten::__getitem__"
        and node.inputsAt(0).type().kind() == "DictType"
        and node.output().type().kind() in ("ListType", "TupleType", "DictType")
    )
