"""A workaround for torch's interpreter."""

from __future__ import annotations

from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir


def keep_returned(graph: Graph) -> None:
    """Keep a value that a block returns alive through the block's loops that read it. torch 2.13
    drops such a value after the first iteration of the inner loop ("Expected Tensor but got None"),
    unless a node after the loop reads it.
    """
    if graph.findNode("prim::Loop", True) is None:
        return
    for node in list(ir.walk(graph)):
        for block in ir.blocks_of(node):
            _copy_returned(graph, block)


def _copy_returned(graph: Graph, block: Block) -> None:
    defined = {value.unique() for value in block.inputs()}
    defined |= {value.unique() for node in block.nodes() for value in node.outputs()}
    read_inside = _read_inside(block)
    end = block.returnNode()
    for index, value in enumerate(ir.inputs(end)):
        if value.unique() in defined and value.unique() in read_inside:
            end.replaceInput(index, _read_again(graph, value, end))


def _read_inside(block: Block) -> set[int]:
    """The ids of the values that the blocks inside this one read or return."""
    read = set[int]()
    for node in block.nodes():
        for inner in ir.blocks_of(node):
            read |= {value.unique() for value in inner.outputs()}
            read |= {
                value.unique() for child in inner.nodes() for value in child.inputs()
            }
            read |= _read_inside(inner)
    return read


_SAME = {"IntType": "prim::max", "FloatType": "prim::max", "BoolType": "aten::__and__"}
"""Operators that return a number unchanged if both of their inputs are that number."""


def _read_again(graph: Graph, value: Value, end: Node) -> Value:
    """The same value, read before `end`."""
    kind = value.type()
    if kind.kind() == "TensorType":
        return ir.insert(graph, "aten::detach", [value], end, [kind]).output()
    if kind.kind() in _SAME:
        # torch's executor removes a tuple that is built and taken apart, and `+ 0`
        return ir.insert(
            graph, _SAME[kind.kind()], [value, value], end, [kind]
        ).output()
    boxed = ir.C.TupleType([kind])
    box = ir.insert(graph, "prim::TupleConstruct", [value], end, [boxed]).output()
    return ir.insert(graph, "prim::TupleUnpack", [box], end, [kind]).output()
