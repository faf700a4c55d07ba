"""Objects of TorchScript classes that attributes of a module hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from builder.graph_types import Node, Type
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


def is_object(kind: Type) -> bool:
    """Whether values of this type are objects of a class that TorchScript compiled. The class has a
    constructor, which the class of a module does not have.
    """
    return (
        kind.kind() == "ClassType"
        and not kind.str().startswith("__torch__.torch.classes.")
        and "__init__" in kind.method_names()
    )


def read_attribute(owner: Any, read: Node) -> Any:
    """The attribute of a module or ModuleObject that a node reads."""
    reads = (read,)
    if isinstance(owner, ModuleObject):
        owner, reads = owner.module, (*owner.reads, read)
    if is_object(read.output().type()):
        return ModuleObject(owner, reads)
    if len(reads) == 1:
        return owner.getattr(read.s("name"))
    return _evaluated(owner, reads)


def _evaluated(module: Any, reads: tuple[Node, ...]) -> Any:
    """The result of these reads. Python may not know the class of an object in a file, so a graph
    reads it.
    """
    graph: Any = torch._C.Graph()
    value = graph.addInput().setType(module._type())
    for read in reads:
        node = graph.appendNode(graph.create(READ, [value], 1))
        node.s_("name", read.s("name"))
        value = node.output().setType(read.output().type())
    graph.registerOutput(value)
    return ir.C._create_function_from_graph("read_attribute", graph)(module)
