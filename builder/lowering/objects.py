"""Objects of TorchScript classes that attributes of a module hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from builder.graph_types import Node, Type, Value
from builder.lowering import ir

READ, WRITE = "prim::GetAttr", "prim::SetAttr"
"""The nodes that read and write an attribute."""


@dataclass(frozen=True)
class ModuleObject:
    """An object that an attribute of a module holds: the module, and the reads that lead from it to
    the object.
    """

    module: Any
    reads: tuple[Node, ...]


@dataclass(frozen=True)
class ObjectTable:
    """A dictionary of objects that an attribute of a module holds, such as the recipes of an einops
    layer: the module, the reads that lead to it, and its keys.
    """

    module: Any
    reads: tuple[Node, ...]
    keys: tuple[Any, ...]


@dataclass(frozen=True)
class TableEntry:
    """The object of an ObjectTable for a key that is a value of the graph."""

    table: ObjectTable
    key: Value

    def attributes(self, read: Node) -> dict[Any, Any]:
        """The attribute that a node reads, of the objects of all keys."""
        table = self.table
        return {
            key: _evaluated(table.module, (*table.reads, read), key)
            for key in table.keys
        }


def is_table(read: Node) -> bool:
    """Whether a node reads a dictionary of objects of which the graph only reads attributes."""
    kind = read.output().type()
    if kind.kind() != "DictType" or not is_object(kind.containedTypes()[1]):
        return False
    items = [use.user for use in read.output().uses()]
    return all(
        item.kind() == "aten::__getitem__"
        and all(_reads_plain(use.user) for use in item.output().uses())
        for item in items
    )


def _reads_plain(node: Node) -> bool:
    return node.kind() == READ and not is_object(node.output().type())


def table_entries(owner: Any, read: Node) -> list[tuple[Node, TableEntry]]:
    """The nodes that read objects of a dictionary of a module or ModuleObject, which `read` reads,
    and these objects.
    """
    reads = (read,)
    if isinstance(owner, ModuleObject):
        owner, reads = owner.module, (*owner.reads, read)
    table = ObjectTable(owner, reads, tuple(_evaluated(owner, reads, keys=True)))
    items = [use.user for use in read.output().uses()]
    return [(item, TableEntry(table, item.inputsAt(1))) for item in items]


def is_object(kind: Type) -> bool:
    """Whether values of this type are objects of a class that TorchScript compiled. The class has a
    constructor, which the class of a module does not have.
    """
    return (
        kind.kind() == "ClassType"
        and not kind.str().startswith("__torch__.torch.classes.")
        and "__init__" in kind.method_names()
    )


AttributeKey = tuple[str, str]
"""The class of an object, and the name of its attribute."""


def access_key(access: Node) -> AttributeKey:
    """The attribute that a node reads or writes."""
    return access.inputsAt(0).type().str(), access.s("name")


def element_name(name: str, index: int) -> str:
    """The name of an element of a list that an attribute holds."""
    return f"{name}[{index}]"


def attribute_of(owner: Any, name: str) -> Any:
    """The attribute of a torch._C.ScriptModule, or the element of one (`element_name`)."""
    name, _, index = name.partition("[")
    value = owner.getattr(name)
    return value[int(index[:-1])] if index else value


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Set what `attribute_of` returns."""
    name, _, index = name.partition("[")
    if index:
        items = list(owner.getattr(name))
        items[int(index[:-1])] = value
        value = items
    owner.setattr(name, value)


def read_attribute(owner: Any, read: Node) -> Any:
    """The attribute of a module or ModuleObject that a node reads."""
    reads = (read,)
    if isinstance(owner, ModuleObject):
        owner, reads = owner.module, (*owner.reads, read)
    if is_object(read.output().type()):
        return ModuleObject(owner, reads)
    if len(reads) == 1:
        return attribute_of(owner, read.s("name"))
    return _evaluated(owner, reads)


def _evaluated(
    module: Any, reads: tuple[Node, ...], key: Any = None, *, keys: bool = False
) -> Any:
    """The result of these reads. Python may not know the class of an object in a file, so a graph
    reads it. With `key`, the last read is of the item of a dictionary; with `keys`, the result is
    the list of a dictionary's keys.
    """
    graph: Any = torch._C.Graph()
    value = graph.addInput().setType(module._type())
    for index, read in enumerate(reads):
        if key is not None and index == len(reads) - 1:
            item = value.type().containedTypes()[1]
            value = _appended(graph, _ITEM, [value, graph.insertConstant(key)], item)
        value = _read(graph, read, value)
    if keys:
        kind = torch.ListType(value.type().containedTypes()[0])
        value = _appended(graph, "aten::keys", [value], kind)
    return _called(graph, value, module)


def is_same(owner: Any, read: Node, other_owner: Any, other: Node) -> bool:
    """Whether the attributes that two nodes read of modules are one object. Python has a copy of a
    list for each read, so a graph compares them.
    """
    graph: Any = torch._C.Graph()
    values = [
        _read(graph, node, graph.addInput().setType(module._type()))
        for node, module in ((read, owner), (other, other_owner))
    ]
    compared = _appended(graph, "aten::__is__", values, ir.C.BoolType.get())
    return bool(_called(graph, compared, owner, other_owner))


_ITEM = "aten::__getitem__"


def _read(graph: Any, read: Node, owner: Value) -> Any:
    """The attribute of `owner` that a node of another graph reads of its owner."""
    value = _appended(graph, READ, [owner], read.output().type())
    value.node().s_("name", read.s("name"))
    return value


def _appended(graph: Any, kind: str, inputs: list[Any], result: Any) -> Any:
    return graph.appendNode(graph.create(kind, inputs, 1)).output().setType(result)


def _called(graph: Any, output: Value, *modules: Any) -> Any:
    """The value of the graph for these modules."""
    graph.registerOutput(output)
    return ir.C._create_function_from_graph("read_attribute", graph)(*modules)
