"""Tensors without axes, which cross with one axis of 1: no Triton tensor has none, and its TensorRT
backend cannot hide that from an engine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir


def with_axis(graph: Graph, inputs: Sequence[bool], outputs: Sequence[bool]) -> tuple[int, int]:
    """Change the graph so that those of its inputs and outputs come and go with the shape [1], as
    () within; how many nodes that adds in front of the others and behind them.
    """
    first, before = next(iter(graph.nodes()), graph.return_node()), _count(graph)
    for value, bare in zip(list(graph.inputs()), inputs, strict=True):
        if bare:
            scalar = _reshaped(graph, value, [], first)
            value.replaceAllUsesAfterNodeWith(scalar.node(), scalar)
    between = _count(graph)
    for position, (value, bare) in enumerate(zip(list(graph.outputs()), outputs, strict=True)):
        if bare:
            graph.return_node().replaceInput(
                position, _reshaped(graph, value, [1], graph.return_node())
            )
    return between - before, _count(graph) - between


def takes_axis(node: Node, inputs: Collection[str]) -> bool:
    """Whether the node makes a tensor without axes of one of the graph's inputs, as with_axis has
    it.
    """
    if node.kind() != "aten::reshape" or node.inputsAt(0).debugName() not in inputs:
        return False
    return ir.int_list(node.inputsAt(1)) == []


def _count(graph: Graph) -> int:
    return sum(1 for _ in graph.nodes())


def _reshaped(graph: Graph, value: Value, shape: list[int], before: Node) -> Value:
    """A new value in front of a node: this one in another shape."""
    # an empty list is no constant to torch
    lengths = [ir.insert_constant(graph, length, before) for length in shape]
    sizes = ir.insert(graph, "prim::ListConstruct", lengths, before, types=[ir.C.ListType.ofInts()])
    return ir.insert(graph, "aten::reshape", [value, sizes.output()], before).output()
