"""Replace a buffer of the module by a copy of it, if the first thing that a call does with it is to
overwrite all of it. No call then depends on an earlier one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.local_attributes import modules_of
from builder.lowering.objects import READ, WRITE, read_attribute
from builder.lowering.passes.functionalize.sharing import holds

_OVERWRITES = ("aten::copy_", "aten::fill_", "aten::zero_")
"""Operators that write every element of their first argument, and do not read it."""
_METADATA = frozenset(
    (
        *(f"aten::{n}" for n in ("size", "len", "dim", "numel")),
        "prim::dtype",
        "prim::device",
    )
)
"""Operators that read no element."""
_CALLS = ("prim::CallMethod", "prim::CallFunction", "prim::fork", "prim::Closure")


def replace(graph: Graph, module: Any) -> None:
    """Replace these buffers of `module`, the graph's first input, and of its submodules. A buffer
    that shares its memory with another tensor of the graph is left as it is.
    """
    if ir.nodes_of(graph, WRITE, *_CALLS) or not ir.nodes_of(graph, *_OVERWRITES):
        return
    for tensor, reads in _buffers(graph, module):
        if _is_overwritten(graph, tensor, reads):
            first = ir.first_node(graph)
            content = ir.insert_constant(graph, tensor, first)
            copy = Emit(graph, first).op("aten::clone", content, None)
            for read in reads:
                read.output().replaceAllUsesWith(copy)
                read.destroy()


def _buffers(graph: Graph, module: Any) -> list[tuple[torch.Tensor, list[Node]]]:
    """The tensors that are attributes, with the nodes that read each. They share memory with no
    other tensor of the graph.
    """
    modules = modules_of(graph, module)
    reads = defaultdict[int, list[tuple[torch.Tensor, Node]]](list)
    others = set[int]()
    for node in ir.nodes_of(graph, READ, "prim::Constant"):
        value = node.output()
        if not holds(value) or "Tensor" not in value.type().str():
            continue
        content = value.toIValue()
        if node.kind() == READ:
            owner = modules.get(node.inputsAt(0).unique())
            if owner is None:
                return []
            content = read_attribute(owner[1], node)
        if node.kind() == READ and _is_plain(content):
            reads[content.untyped_storage().data_ptr()].append((content, node))
        else:
            others |= _storages(content)
    return [
        (found[0][0], [node for _, node in found])
        for storage, found in reads.items()
        if storage not in others
        and all(_is_same(found[0][0], tensor) for tensor, _ in found)
    ]


def _is_plain(content: Any) -> bool:
    return (
        isinstance(content, torch.Tensor)
        and content.layout is torch.strided
        and bool(content.numel())
    )


def _storages(content: Any) -> set[int]:
    return {
        tensor.untyped_storage().data_ptr()
        for tensor in tree_leaves(content)
        if _is_plain(tensor)
    }


def _is_same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors of one storage are one tensor."""
    return (
        x.data_ptr() == y.data_ptr()
        and x.dtype == y.dtype
        and x.size() == y.size()
        and x.stride() == y.stride()
    )


def _is_overwritten(graph: Graph, tensor: torch.Tensor, reads: list[Node]) -> bool:
    """Whether every call writes all of the tensor before it reads an element."""
    whole = {read.output().unique() for read in reads}
    for node in graph.nodes():
        if any(_uses(inner, whole) for inner in ir.blocks_of(node)):
            return False
        used = [at for at, v in enumerate(node.inputs()) if v.unique() in whole]
        if not used or node.kind() in _METADATA:
            continue
        if used != [0]:
            return False
        if node.kind() in _OVERWRITES:
            return True
        if not _is_whole(node, tensor):
            return False
        whole.add(node.output().unique())
    return False


def _uses(block: Any, values: set[int]) -> bool:
    """Whether a block uses or returns one of these values."""
    used = [*block.outputs(), *(v for node in ir.walk(block) for v in node.inputs())]
    returned = [
        value
        for node in ir.walk(block)
        for inner in ir.blocks_of(node)
        for value in inner.outputs()
    ]
    return any(value.unique() in values for value in [*used, *returned])


def _is_whole(node: Node, tensor: torch.Tensor) -> bool:
    """Whether the node is a slice that has all elements of the tensor."""
    if node.kind() != "aten::slice" or node.inputsAt(0).type().kind() != "TensorType":
        return False
    _, dim, start, end, step = (_number(value) for value in node.inputs())
    if dim is None or step != 1 or not -tensor.dim() <= dim < tensor.dim():
        return False
    starts = ir.is_none(node.inputsAt(2)) or start == 0
    ends = ir.is_none(node.inputsAt(3)) or (end is not None and end >= tensor.size(dim))
    return starts and ends


def _number(value: Value) -> int | None:
    number = ir.constant(value)
    return number if isinstance(number, int) else None
