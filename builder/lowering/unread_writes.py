"""Remove writes to attributes of the module that nothing reads, such as a count of calls, or
attention weights that are kept for a plot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir

_IN_PLACE = frozenset(["aten::add_", "aten::sub_"])
_COUNTING = _IN_PLACE | {"aten::add", "aten::sub"}

Key = tuple[str, str]
"""The class of the object and the name of the attribute."""


def remove(
    graph: Graph, is_created: Callable[[Value], bool], *, shares_memory: bool
) -> None:
    """Remove these writes from the graph. Objects that the graph creates (`is_created`) are left
    alone. With `shares_memory`, attributes of the module may be one tensor, so no tensor is
    changed in place unread.
    """
    writes = defaultdict[Key, list[Node]](list)
    for node in ir.nodes_of(graph, "prim::SetAttr"):
        if not is_created(node.inputsAt(0)):
            writes[_key(node)].append(node)
    if not writes:
        return
    reads = defaultdict[Key, list[Value]](list)
    for node in ir.nodes_of(graph, "prim::GetAttr"):
        reads[_key(node)].append(node.output())
    for key, nodes in writes.items():
        users = [use.user for value in reads[key] for use in value.uses()]
        counting = [node for node in users if node.kind() != "prim::SetAttr"]
        if all(_counts(node, key, shares_memory) for node in counting):
            _destroy(nodes, counting)


def _key(node: Node) -> Key:
    return node.inputsAt(0).type().str(), node.s("name")


def _counts(node: Node, key: Key, shares_memory: bool) -> bool:
    """Whether the node only adds to the attribute."""
    if node.kind() not in _COUNTING:
        return False
    is_tensor = node.inputsAt(0).type().kind() == "TensorType"
    if node.kind() in _IN_PLACE and (shares_memory or not is_tensor):
        return False
    return all(
        use.user.kind() == "prim::SetAttr" and _key(use.user) == key
        for use in node.output().uses()
    )


def _destroy(writes: Sequence[Node], counting: Sequence[Node]) -> None:
    for node in writes:
        node.destroy()
    for node in counting:
        if node.kind() in _IN_PLACE:  # others are dead code
            node.destroy()
