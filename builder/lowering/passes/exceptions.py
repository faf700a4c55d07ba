"""Remove exceptions and assertions. An engine cannot raise them, so a branch that raises is treated
as not taken.
"""

from __future__ import annotations

from builder.graph_types import Block, Graph
from builder.lowering import ir
from builder.lowering.locations import source_location
from builder.lowering.passes import Context, lowering_pass

_ASSERTIONS = ("aten::_assert_async", "aten::warn", "prim::Print")


@lowering_pass("eliminate-exceptions", touches=("prim::RaiseException", *_ASSERTIONS))
def eliminate_exceptions(graph: Graph, context: Context) -> None:
    """Remove ifs in which one branch raises: the other branch replaces the if.

    Assertions are removed, too. Inner ifs are processed first, so that nested guards disappear. A
    raise that every path reaches stays. A condition on the values of inputs is noted for a warning.
    """
    for node in reversed(ir.nodes_of(graph, "prim::If")):
        raising = [_raises(block) for block in node.blocks()]
        if raising.count(True) == 1:
            if ir.is_of_data(node.inputsAt(0)):
                context.unchecked.append(source_location(node))
            ir.splice(node, list(node.blocks())[raising.index(False)])
    for node in ir.nodes_of(graph, *_ASSERTIONS):
        node.destroy()


def _raises(block: Block) -> bool:
    """Whether the block itself (not an if inside it) ends in an exception."""
    return any(node.kind() == "prim::RaiseException" for node in block.nodes())
