"""Attributes that each call casts, such as `self.anchors = [a.to(x.dtype) for a in self.anchors]`.

A second cast to the same dtype changes nothing, and the dtype is that of the endpoint's tensors in
every call. So each call may start with the attribute as it is in the file.
"""

from __future__ import annotations

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.constant_writes import is_computed, written_tensors
from builder.lowering.objects import READ, WRITE


def replace(graph: Graph) -> None:
    """Replace the reads after each such write by the value that it writes, and remove the write.
    Writes in a branch or loop stay, as do those of an attribute that is read before it is cast.
    """
    for write in ir.nodes_of(graph, WRITE):
        source = _cast_attribute(write.inputsAt(1))
        if source is None or write.owningBlock().owningNode() is not None:
            continue
        accesses = _accesses(graph, write)
        owners = {_path(node.inputsAt(0)) for node in accesses}
        reads = accesses[2:]
        if (
            accesses[:2] == [source, write]
            and len(owners) == 1
            and all(map(_is_only_read, reads))
            and _writes_others(graph, write.s("name"))
        ):
            for node in reads:
                ir.replace(node, [write.inputsAt(1)])
            write.destroy()


def _accesses(graph: Graph, write: Node) -> list[Node]:
    """The nodes that may read or write the attribute that a node writes, in program order."""
    owner, name = write.inputsAt(0).type().str(), write.s("name")
    return [
        node
        for node in ir.walk(graph)
        if node.kind() in (READ, WRITE)
        and node.s("name") == name
        and node.inputsAt(0).type().str() == owner
    ]


def _path(owner: Value) -> str:
    """The path of a module from the module of the graph."""
    node = owner.node()
    if node.kind() != READ:
        return owner.debugName()
    return f"{_path(node.inputsAt(0))}.{node.s('name')}"


_LIST_READERS = frozenset(
    "aten::len aten::__getitem__ aten::__is__ aten::__isnot__ prim::ListUnpack".split()
)


def _is_only_read(access: Node) -> bool:
    """Whether a node reads the attribute, and no node changes the list that it may be."""
    if access.kind() != READ:
        return False
    users = {use.user.kind() for use in access.output().uses()}
    return access.output().type().kind() == "TensorType" or users <= _LIST_READERS


def _writes_others(graph: Graph, name: str) -> bool:
    """Whether all in-place writes are of results of operators, or of attributes with another
    name.
    """
    return all(
        is_computed(value)
        or (value.node().kind() == READ and value.node().s("name") != name)
        for value in written_tensors(graph)
    )


def _cast_attribute(value: Value) -> Node | None:
    """The read of the attribute of which a value is a cast; None for any other value."""
    node = value.node()
    if node.kind() == "aten::to":
        return _read(node.inputsAt(0))
    if node.kind() != "prim::ListConstruct" or node.inputsSize():
        return None
    changes = [use.user for use in value.uses() if use.user.kind() != WRITE]
    if len(changes) != 1 or changes[0].kind() != "aten::append":
        return None
    return _cast_in_loop(changes[0])


def _cast_in_loop(append: Node) -> Node | None:
    """The read of the attribute whose elements a loop casts and appends."""
    loop, cast = append.owningBlock().owningNode(), append.inputsAt(1).node()
    element = cast.inputsAt(0).node() if cast.kind() == "aten::to" else None
    if loop is None or loop.kind() != "prim::Loop" or element is None:
        return None
    body = ir.first_block(loop)
    length, counter = loop.inputsAt(0).node(), next(iter(body.inputs()))
    is_over_all = (
        loop.owningBlock().owningNode() is None
        and element.kind() == "aten::__getitem__"
        and element.inputsAt(1).unique() == counter.unique()
        and length.kind() == "aten::len"
        and length.inputsAt(0).unique() == element.inputsAt(0).unique()
        and ir.constant(next(iter(body.outputs()))) is True
    )
    return _read(element.inputsAt(0)) if is_over_all else None


def _read(value: Value) -> Node | None:
    """The node that reads an attribute, if nothing but its cast uses the result. The number of
    elements of a list is the same before and after.
    """
    node = value.node()
    users = [use.user for use in value.uses() if use.user.kind() != "aten::len"]
    while len(users) == 1 and users[0].kind() == "aten::__getitem__":
        users = [use.user for use in users[0].output().uses()]
    is_only_cast = [user.kind() for user in users] == ["aten::to"]
    return node if node.kind() == READ and is_only_cast else None
