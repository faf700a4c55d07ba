"""Treat the elements of a list of the module as attributes of their own, such as
`self.grid[0] = torch.arange(n)`, if the graph reads and writes the list only by constant indices.
The passes over attributes then apply to each element. An element is named `grid[0]`.
"""

from __future__ import annotations

from typing import Any

from builder.graph_types import Graph, Node, Type, Value
from builder.lowering import ir
from builder.lowering.local_attributes import Modules, modules_of
from builder.lowering.objects import (
    READ,
    WRITE,
    AttributeKey,
    access_key,
    element_name,
    is_same,
    read_attribute,
)

_SET = "aten::_set_item"
_ELEMENTS = ("TensorType", "IntType", "FloatType", "BoolType")


def split(graph: Graph, module: Any) -> None:
    """Replace the accesses to elements by accesses to attributes. `module` is the first input."""
    written = {_access(node) for node in ir.nodes_of(graph, _SET)}
    if written <= {None}:
        return
    modules = modules_of(graph, module)
    reads = [n for n in ir.nodes_of(graph, READ) if _is_list(n.output().type())]
    if any(node.inputsAt(0).unique() not in modules for node in reads):
        return  # the object that has the list is not known
    written -= {access_key(node) for node in ir.nodes_of(graph, WRITE)}
    lengths = {node: len(_value(node, modules)) for node in reads}
    split = {
        key
        for key in written
        if all(
            _is_by_elements(node, lengths[node])
            and not any(_is_same_list(node, other, modules) for other in reads)
            for node in reads
            if access_key(node) == key
        )
    }
    for node in reads:
        if access_key(node) in split:
            _split(graph, node, lengths[node])


def _is_list(kind: Type) -> bool:
    return kind.kind() == "ListType"


def _access(node: Node) -> AttributeKey | None:
    read = node.inputsAt(0).node()
    return access_key(read) if read.kind() == READ else None


def _value(read: Node, modules: Modules) -> list[Any]:
    """The list in the file."""
    _, owner = modules[read.inputsAt(0).unique()]
    return list(read_attribute(owner, read))


def _is_same_list(read: Node, other: Node, modules: Modules) -> bool:
    """Whether two attributes hold one list."""
    path, owner = modules[read.inputsAt(0).unique()]
    other_path, other_owner = modules[other.inputsAt(0).unique()]
    if (path, read.s("name")) == (other_path, other.s("name")):
        return False
    return is_same(owner, read, other_owner, other)


def _is_by_elements(read: Node, length: int) -> bool:
    if read.output().type().getElementType().kind() not in _ELEMENTS:
        return False
    return all(
        use.offset == 0 and _is_of_element(use.user, length)
        for use in read.output().uses()
    )


def _is_of_element(user: Node, length: int) -> bool:
    """Whether a node reads the length, or reads or writes an element that the list has."""
    if user.kind() == "aten::len":
        return True
    if user.kind() not in ("aten::__getitem__", _SET):
        return False
    index = ir.constant(user.inputsAt(1))
    is_used = user.kind() == _SET and user.hasUses()
    return type(index) is int and -length <= index < length and not is_used


def _split(graph: Graph, read: Node, length: int) -> None:
    owner, name = read.inputsAt(0), read.s("name")
    for user in [use.user for use in read.output().uses()]:
        if user.kind() == "aten::len":
            ir.replace(user, [ir.insert_constant(graph, length, user)])
            continue
        index = range(length)[ir.constant(user.inputsAt(1))]
        arguments: list[Value] = [owner]
        kind, types = READ, [read.output().type().getElementType()]
        if user.kind() == _SET:
            kind, types = WRITE, []
            arguments.append(user.inputsAt(2))
        node = graph.create(kind, arguments, len(types))
        node.s_("name", element_name(name, index))
        node.insertBefore(user)
        ir.adopt(node, user)
        for output, type_of in zip(node.outputs(), types, strict=True):
            output.setType(type_of)
        ir.replace(user, list(node.outputs())) if types else user.destroy()
    read.destroy()
