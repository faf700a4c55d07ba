"""Remove exceptions and assertions. An engine cannot raise them, so a branch that raises is treated
as not taken.
"""

from __future__ import annotations

from builder.graph_types import Block, Graph, Node
from builder.lowering import ir
from builder.lowering.locations import source_location
from builder.lowering.passes import Context, lowering_pass

_ASSERTIONS = (
    "aten::_assert_async",
    "aten::_assert_scalar",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
)
_MESSAGES = ("aten::warn", "prim::Print")


@lowering_pass(
    "eliminate-exceptions",
    touches=("prim::RaiseException", *_ASSERTIONS, *_MESSAGES),
)
def eliminate_exceptions(graph: Graph, context: Context) -> None:
    """Remove ifs in which one branch raises: the other branch replaces the if.

    Assertions and messages are removed, too. Inner ifs are processed first, so that nested guards
    disappear. A raise that every path reaches stays. A condition on the values of inputs is noted
    for a warning.
    """
    for node in reversed(ir.nodes_of(graph, "prim::If")):
        raising = [_raises(block) for block in node.blocks()]
        if raising.count(True) == 1:
            _note(node, context)
            ir.splice(node, list(node.blocks())[raising.index(False)])
    for node in ir.nodes_of(graph, *_ASSERTIONS):
        _note(node, context)
        node.destroy()
    for node in ir.nodes_of(graph, *_MESSAGES):
        node.destroy()


def _note(node: Node, context: Context) -> None:
    """Note the source location of a condition that depends on the values of inputs."""
    condition = node.inputsAt(0)
    is_tensor = str(condition.type()) == "Tensor" and not ir.is_constant(condition)
    if is_tensor or ir.is_of_data(condition):
        context.unchecked.append(source_location(node))


def _raises(block: Block) -> bool:
    """Whether the block itself (not an if inside it) ends in an exception."""
    return any(node.kind() == "prim::RaiseException" for node in block.nodes())
