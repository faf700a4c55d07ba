"""Workarounds for torch's executor.

Before it runs a graph, the executor (`CanonicalizeOps`) replaces a 0-d constant tensor by a number
if it is the second operand of `add`, `sub`, `mul` or `div`. For this reason a saved trace computes
`ids * 0.5` in float32, although the file has a float64 tensor. `_jit_interpret_graph`, which runs
graphs during lowering, has no such step. The graph therefore has to distinguish constants that are
numbers from constants that are tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit


def keep_returned(graph: Graph) -> None:
    """Keep a value that a block returns alive through the block's loops that read it. torch 2.13
    drops such a value after the first iteration of the inner loop ("Expected Tensor but got None"),
    unless a node after the loop reads it.
    """
    if graph.findNode("prim::Loop") is None:
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
    emit = Emit(graph, end)
    if kind.kind() == "TensorType":
        return emit.op("aten::detach", value, type=kind)
    if kind.kind() in _SAME:
        # torch's executor removes a tuple that is built and taken apart, and `+ 0`
        return emit.op(_SAME[kind.kind()], value, value, type=kind)
    box = emit.op("prim::TupleConstruct", value, type=ir.C.TupleType([kind]))
    return emit.op("prim::TupleUnpack", box, type=kind)


_KINDS = ("aten::add", "aten::sub", "aten::mul", "aten::div")
_SCHEMAS = frozenset(
    [
        "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor",
        "aten::div.Tensor(Tensor self, Tensor other) -> Tensor",
    ]
)


def constants_to_numbers(graph: Graph) -> None:
    """Replace the constants that torch's executor treats as numbers by numbers.

    Call it before attributes become constants, because the executor does not replace buffers. A
    bool stays a tensor, because no operator accepts a bool as a number.
    """
    for node, tensor in _second_operands(graph):
        if tensor.dtype != torch.bool:
            number = ir.insert_constant(
                graph, tensor.item(), node, node.inputsAt(1).node()
            )
            node.replaceInput(1, number)


def keep_constants_tensors(graph: Graph) -> None:
    """Make torch's executor read the remaining 0-d constants as tensors: after a `detach` it does
    not treat them as numbers.
    """
    for node, _ in _second_operands(graph):
        node.replaceInput(1, Emit(graph, node).op("aten::detach", node.inputsAt(1)))


def _second_operands(graph: Graph) -> Iterator[tuple[Any, torch.Tensor]]:
    """The nodes whose second operand the executor would replace, with that constant."""
    for node in ir.nodes_of(graph, *_KINDS):
        second = node.inputsAt(1)
        if ir.is_constant(second) and node.schema() in _SCHEMAS:
            tensor = second.node().t("value")
            if tensor.dim() == 0:
                yield node, tensor
