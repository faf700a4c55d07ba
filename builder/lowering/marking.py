"""Inlining that marks the nodes of modules that must run in torch. torch records the module names
of each node's call stack, but not the list that a layer is in.

torch records for each node by which names its modules were called, but not the list that a layer
was taken from. Where the record may mean a requested module or another one, the calls of a copy are
inlined here one by one: then the modules are known, but the record is lost, from which layers get
their names. The marks are carried over to the graph that torch inlined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from builder.graph_types import Graph, Node, NodeList
from builder.lowering import ir
from builder.lowering.containers import LISTS, UNKNOWN
from builder.lowering.objects import read_attribute

_CALLED = re.compile(r"([^.()]+)\(([^()]*)\)")
_SELF = "SELF"
"""The name in torch's record for a module that calls its own method."""
_EDGE = "builder.lowering.marking"


def inline_and_mark(graph: Graph, module: Any, requested: frozenset[str]) -> None:
    """Inline every call in `graph`, whose first input is `module`, and mark the nodes of the
    modules in `requested`, including their submodules.

    A name is a qualified name (`layers.0.act`) or a class name (`Swish`).
    """
    recorded = graph.copy()
    ir.C._jit_pass_inline(recorded)
    if _nodes_by_record(recorded, module, requested) is None:
        marked = graph.copy()
        _one_by_one(marked, module, requested)
        if _kinds(marked) != _kinds(recorded):
            _one_by_one(graph, module, requested)
            return
        ir.C._jit_pass_inline(graph)
        for node, twin in zip(ir.walk(graph), ir.walk(marked), strict=True):
            if ir.in_fallback(twin):
                ir.mark(node)
        return
    ir.C._jit_pass_inline(graph)
    for node in _nodes_by_record(graph, module, requested) or ():
        ir.mark(node)


def _kinds(graph: Graph) -> list[str]:
    """The kinds of all nodes in program order."""
    return [node.kind() for node in ir.walk(graph)]


def mark_by_record(graph: Graph, module: Any, requested: frozenset[str]) -> None:
    """Mark the nodes of a graph without calls by torch's record alone. A node with an ambiguous
    record is not marked. Names are those of `inline_and_mark`; `module` is a torch._C.ScriptModule.
    """
    for node in ir.walk(graph):
        if node.kind() != "prim::Constant" and _is_requested(
            node.getModuleHierarchy(), module, requested
        ):
            ir.mark(node)


def _nodes_by_record(
    graph: Graph, module: Any, requested: frozenset[str]
) -> list[Any] | None:
    """The nodes that torch's record assigns to a requested module; None if it is ambiguous."""
    results: dict[str, bool | None] = {"": False}
    nodes = []
    for node in ir.walk(graph):
        if node.kind() == "prim::Constant":
            continue
        record = node.getModuleHierarchy()
        if record not in results:
            results[record] = _is_requested(record, module, requested)
        if results[record] is None:
            return None
        if results[record]:
            nodes.append(node)
    return nodes


def _is_requested(record: str, module: Any, requested: frozenset[str]) -> bool | None:
    """Whether `0(Block).act(Swish)` is a requested module or inside one; None if ambiguous."""
    owners = [("", module, False)]
    for name, kind in _CALLED.findall(record):
        if name in (UNKNOWN, _SELF):  # a function, or a method of the same module
            continue
        owners = [
            (path, inner, inside or _names(requested, path, kind))
            for owner, outer, inside in owners
            for path, inner in _called(outer, owner)
            if path.rpartition(".")[2] == name and _class_name(inner) == kind
        ]
    answers = {inside for _, _, inside in owners}
    if len(answers) == 1:
        return answers.pop()
    return None


def _names(requested: frozenset[str], path: str, kind: str) -> bool:
    """Whether a requested name is that of this module, of a list that contains it, or of its
    class.
    """
    return kind in requested or any(
        f"{path}.".startswith(f"{name}.") for name in requested
    )


def _called(module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """The modules that `module` can call: its children, and those in its lists, with their
    paths.
    """
    for name, child in torch._C.ModuleDict(module).items():
        path = f"{prefix}.{name}".lstrip(".")
        yield path, child
        if _class_name(child) in LISTS:
            yield from _called(child, path)


def _one_by_one(graph: Graph, module: Any, requested: frozenset[str]) -> None:
    _Marker(
        graph, {next(iter(graph.inputs())).unique(): ("", module)}, requested
    ).block(list(graph.nodes()))
    for node in ir.nodes_of(graph, "prim::CallFunction"):
        if ir.in_fallback(node):
            _fence(graph, node)
    ir.C._jit_pass_inline(graph)
    _mark_between_fences(graph)


@dataclass(eq=False)
class _Marker:
    """Walks a graph that grows during the walk. `owners` maps each module value to its path and
    module.
    """

    graph: Graph
    owners: dict[int, tuple[str, Any]]
    requested: frozenset[str]

    def block(self, nodes: list[Node]) -> None:
        for node in nodes:
            for inner in list(node.blocks()):
                self.block(list(inner.nodes()))
            if node.kind() == "prim::GetAttr":
                self._attribute(node)
            elif (
                node.kind() == "prim::CallMethod"
                and node.inputsAt(0).unique() in self.owners
            ):
                self.block(self._inline(node))

    def _attribute(self, node: Node) -> None:
        path, owner = self.owners.get(node.inputsAt(0).unique(), ("", None))
        name = node.s("name")
        attribute = None
        if owner is not None:
            attribute = read_attribute(owner, node)
        if isinstance(attribute, torch._C.ScriptModule):
            self.owners[node.output().unique()] = (
                f"{path}.{name}".lstrip("."),
                attribute,
            )

    def _inline(self, node: Node) -> list[Node]:
        """Replace the call by the called method's nodes, and return them."""
        path, owner = self.owners[node.inputsAt(0).unique()]
        marked = ir.in_fallback(node) or _names(
            self.requested, path, _class_name(owner)
        )
        before = node.prev()
        with self.graph.insert_point_guard(node):
            results = self.graph.insertGraph(
                owner._get_method(node.s("name")).graph, ir.inputs(node)
            )
        inlined = ir.nodes_between(before, node)
        if marked:
            for top in inlined:
                ir.mark(top)
                for block in top.blocks():
                    for child in ir.walk(block):
                        ir.mark(child)
        ir.replace(node, results)
        return inlined


def _class_name(owner: Any) -> str:
    return str(owner._type().qualified_name()).rsplit(".", 1)[-1]


def _fence(graph: Graph, node: Node) -> None:
    """Insert a constant before and after a marked call; torch inlines the called method between
    them.
    """
    for edge in ("in", "out"):
        value = ir.insert_constant(graph, f"{_EDGE}.{edge}", node)
        if edge == "out":
            node.moveBefore(value.node())


def _mark_between_fences(block: NodeList, depth: int = 0) -> None:
    for node in list(block.nodes()):
        if node.kind() == "prim::Constant" and not node.hasUses():
            edge = node.output().toIValue()
        else:
            edge = None
        if isinstance(edge, str) and edge.startswith(_EDGE):
            depth += 1 if edge.endswith("in") else -1
            node.destroy()
        else:
            if depth:
                ir.mark(node)
            for inner in node.blocks():
                _mark_between_fences(inner, depth)
