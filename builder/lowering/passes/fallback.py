"""Mark modules that must run in torch, by name."""

from __future__ import annotations

import re

from builder.graph_types import Graph, Node
from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass

_CALL = re.compile(r"([\w.]+)\(([\w.]+)\)")


@lowering_pass("mark-fallback", enabled=lambda context: bool(context.fallback_modules))
def mark_fallback(graph: Graph, context: Context) -> None:
    """Mark the nodes of the modules in `fallback_modules`, by qualified name (`encoder.layers.0`)
    or class name (`Swish`).

    A module is marked while its calls are inlined (`builder.lowering.marking`). This pass marks
    nodes that were inlined before, by their call stacks. The mark is an attribute of the node.
    torch's common-subexpression elimination never merges a marked node with an unmarked one, marked
    nodes are not decomposed, and nodes that replace a marked node are marked.
    """
    names = frozenset(context.fallback_modules)
    for node in ir.walk(graph):
        if belongs(node, names):
            ir.mark(node)


def belongs(node: Node, names: frozenset[str]) -> bool:
    """Whether a node was inlined from a module with one of these names, or from inside one."""
    path: list[str] = []
    for name, kind in _CALL.findall(node.getModuleHierarchy()):
        path.append(name)
        if kind in names or ".".join(path) in names:
            return True
    return False
