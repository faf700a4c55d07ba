"""Tuples that ifs return and loops carry, as their elements.

torch's own pass gives these elements the type Tensor, and it fails on tuples within such tuples.
"""

from __future__ import annotations

from builder.graph_types import Block, Graph, Node, Type, Value
from builder.lowering import ir


def split(graph: Graph) -> None:
    """Replace every tuple that an if returns or a loop carries by its elements, and build it again
    where it is read.
    """
    for node in ir.nodes_of(graph, "prim::If", "prim::Loop"):
        while (position := _first_tuple(node)) is not None:
            _split_output(graph, node, position)


def _first_tuple(node: Node) -> int | None:
    for position, output in enumerate(node.outputs()):
        if output.type().kind() == "TupleType":
            return position
    return None


def _split_output(graph: Graph, node: Node, position: int) -> None:
    output = node.outputsAt(position)
    types = list(output.type().elements())
    is_loop = node.kind() == "prim::Loop"
    if is_loop:
        _split_parameter(graph, node, position)
    for block in ir.blocks_of(node):
        returned = block.returnNode()
        index = position + is_loop
        elements = _unpacked(graph, returned.inputsAt(index), returned, types)
        for element in elements:
            block.registerOutput(element)
        returned.removeInput(index)
    values = [node.addOutput().setType(kind) for kind in types]
    packed = _packed(graph, values, output.type(), node)
    packed.moveAfter(node)
    output.replaceAllUsesWith(packed.output())
    node.eraseOutput(position)


def _split_parameter(graph: Graph, loop: Node, position: int) -> None:
    """The loop with the elements among its inputs and the parameters of its body."""
    body = ir.first_block(loop)
    parameter = list(body.inputs())[position + 1]
    types = list(parameter.type().elements())
    for element in _unpacked(graph, loop.inputsAt(position + 2), loop, types):
        loop.addInput(element)
    loop.removeInput(position + 2)
    values = [body.addInputToBlock().setType(kind) for kind in types]
    packed = _packed(graph, values, parameter.type(), _first(body))
    parameter.replaceAllUsesWith(packed.output())
    body.paramNode().eraseOutput(position + 1)


def _first(block: Block) -> Node:
    return next(iter(block.nodes()), block.returnNode())


def _unpacked(
    graph: Graph, value: Value, before: Node, types: list[Type]
) -> list[Value]:
    if not types:
        return []
    return ir.outputs(ir.insert(graph, "prim::TupleUnpack", [value], before, types))


def _packed(graph: Graph, values: list[Value], kind: Type, before: Node) -> Node:
    return ir.insert(graph, "prim::TupleConstruct", values, before, [kind])
