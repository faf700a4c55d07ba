"""Remove writes to attributes of the module that nothing reads, such as a count of calls, or
attention weights that are kept for a plot. An attribute that only decides whether a message is
written, such as `if not self.has_warned`, counts as one that nothing reads.
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
    graph: Graph,
    is_created: Callable[[Value], bool],
    shares_memory: Callable[[], bool],
) -> None:
    """Remove these writes from the graph. Objects that the graph creates (`is_created`) are left
    alone. `shares_memory` answers whether two attributes of the module may be one tensor: then an
    in-place addition stays, because it also changes the other attribute.
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
        messages = [node for node in users if _decides_message(node, key)]
        others = [node for node in users if node not in messages]
        counting = [node for node in others if node.kind() != "prim::SetAttr"]
        if not all(_counts(node, key) for node in counting):
            continue
        in_place = [node for node in counting if node.kind() in _IN_PLACE]
        if in_place and (not _only_counts(nodes) or shares_memory()):
            continue
        for node in (*nodes, *in_place):  # other additions are dead code
            node.destroy()
        for node in messages:
            _remove_branches(node)


_MESSAGE = frozenset(["aten::warn", "prim::Print", "aten::format", "prim::Constant"])


def _decides_message(node: Node, key: Key) -> bool:
    """Whether the node only decides whether a message is written and the attribute set."""
    if node.kind() == "aten::__not__":
        return all(_decides_message(use.user, key) for use in node.output().uses())
    return (
        node.kind() == "prim::If"
        and not node.outputsSize()
        and all(
            inner.kind() in _MESSAGE
            or (inner.kind() == "prim::SetAttr" and _key(inner) == key)
            for block in ir.blocks_of(node)
            for inner in ir.walk(block)
        )
    )


def _remove_branches(node: Node) -> None:
    """Remove a node that decides only messages, with its branches."""
    if node.kind() != "prim::If":
        for use in node.output().uses():
            _remove_branches(use.user)
    node.destroy()


def _key(node: Node) -> Key:
    return node.inputsAt(0).type().str(), node.s("name")


def _counts(node: Node, key: Key) -> bool:
    """Whether the node only adds to the attribute. An in-place addition of the attribute to another
    tensor does not.
    """
    if node.kind() not in _COUNTING:
        return False
    if node.kind() in _IN_PLACE and not (
        node.inputsAt(0).type().kind() == "TensorType"
        and _is_read(node.inputsAt(0), key)
        and not _is_read(node.inputsAt(1), key)
    ):
        return False
    return all(
        use.user.kind() == "prim::SetAttr" and _key(use.user) == key
        for use in node.output().uses()
    )


def _is_read(value: Value, key: Key) -> bool:
    return value.node().kind() == "prim::GetAttr" and _key(value.node()) == key


def _only_counts(writes: Sequence[Node]) -> bool:
    """Whether every write stores a sum that nothing else reads. An in-place addition would change
    another tensor for its other readers, too.
    """
    for write in writes:
        total = write.inputsAt(1)
        node = total.node()
        if node.kind() not in _COUNTING or len(total.uses()) > 1:
            return False
        if node.kind() in _IN_PLACE and not _is_read(node.inputsAt(0), _key(write)):
            return False
    return True
