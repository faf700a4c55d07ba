"""Inlining that remembers: the nodes of modules that shall run in torch are marked as their calls
are inlined.

The qualified name of a module is only known at its call: the graphs of two instances of a class are
one and the same.
"""

from __future__ import annotations

from typing import Any

import torch

from builder.lowering import ir

_EDGE = "builder.lowering.marking"


def inline_and_mark(graph: Any, module: Any, wanted: frozenset[str]) -> None:
    """Inline every call in `graph`, whose first input is `module`, and mark what comes from the
    modules that `wanted` names.

    A name is a qualified name (`layers.0.act`) or a class name (`Swish`); what is inside a wanted
    module is marked as well.
    """
    _Marker(graph, {next(iter(graph.inputs())).unique(): ("", module)}, wanted).block(
        list(graph.nodes())
    )
    for node in ir.nodes_of(graph, "prim::CallFunction"):
        if ir.in_fallback(node):
            _fence(graph, node)
    ir.C._jit_pass_inline(graph)
    _mark_between_fences(graph)


class _Marker:
    """Walks a graph that grows under it; `owners` holds the path and the module behind each value
    that is one.
    """

    def __init__(
        self, graph: Any, owners: dict[int, tuple[str, Any]], wanted: frozenset[str]
    ) -> None:
        self.graph, self.owners, self.wanted = graph, owners, wanted

    def block(self, nodes: list[Any]) -> None:
        for node in nodes:
            for inner in list(node.blocks()):
                self.block(list(inner.nodes()))
            if node.kind() == "prim::GetAttr":
                self._attribute(node)
            elif node.kind() == "prim::CallMethod" and node.inputsAt(0).unique() in self.owners:
                self.block(self._inline(node))

    def _attribute(self, node: Any) -> None:
        path, owner = self.owners.get(node.inputsAt(0).unique(), ("", None))
        found = owner.getattr(node.s("name")) if owner is not None else None
        if isinstance(found, torch._C.ScriptModule):
            self.owners[node.output().unique()] = (f"{path}.{node.s('name')}".lstrip("."), found)

    def _inline(self, node: Any) -> list[Any]:
        """Put the called method's nodes in the call's place; give them."""
        path, owner = self.owners[node.inputsAt(0).unique()]
        marked = ir.in_fallback(node) or path in self.wanted or _class_name(owner) in self.wanted
        before = node.prev()
        with self.graph.insert_point_guard(node):
            results = self.graph.insertGraph(
                owner._get_method(node.s("name")).graph, ir.inputs(node)
            )
        added = _between(before, node)
        for child in (inner for top in added for inner in [top, *_inside(top)] if marked):
            ir.mark(child)
        ir.replace(node, results)
        return added


def _class_name(owner: Any) -> str:
    return str(owner._type().qualified_name()).rsplit(".", 1)[-1]


def _between(first: Any, last: Any) -> list[Any]:
    nodes, node = [], last.prev()
    while node != first:
        nodes.append(node)
        node = node.prev()
    return nodes[::-1]


def _inside(node: Any) -> list[Any]:
    return [inner for block in node.blocks() for inner in ir.walk(block)]


def _fence(graph: Any, node: Any) -> None:
    """Set a constant on either side of a marked call: torch inlines what it calls between them."""
    for edge in ("in", "out"):
        value = ir.insert_constant(graph, f"{_EDGE}.{edge}", node)
        if edge == "out":
            node.moveBefore(value.node())


def _mark_between_fences(block: Any, depth: int = 0) -> None:
    for node in list(block.nodes()):
        edge = (
            node.output().toIValue()
            if node.kind() == "prim::Constant" and not node.hasUses()
            else None
        )
        if isinstance(edge, str) and edge.startswith(_EDGE):
            depth += 1 if edge.endswith("in") else -1
            node.destroy()
        else:
            if depth:
                ir.mark(node)
            for inner in node.blocks():
                _mark_between_fences(inner, depth)
