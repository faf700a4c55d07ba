"""Boundary tensors: their names, and the shape [1] of 0-d ones.

Triton has no 0-d tensors, and its TensorRT backend cannot reshape for an engine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from builder.graph_types import Graph, Node, Value
from builder.lowering import LoweredGraph, ir
from builder.names import unique_name


def tensor_name(value: str) -> str:
    """A value's debug name as a tensor name that is valid in Triton and file systems: `x.3` is
    `x_3`, `17` is `t17`.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", value)
    if name[0].isdigit():
        return f"t{name}"
    return name


class TensorNames(dict[str, str]):
    """Tensor names by debug name: those of the model for its inputs and outputs, else unique names
    from the values, assigned on first use. `containers` name the layers of segments.
    """

    def __init__(self, lowered: LoweredGraph) -> None:
        super().__init__(
            (value.debugName(), name)
            for value, name in zip(lowered.graph.inputs(), lowered.inputs, strict=True)
        )
        self.update(
            (value.debugName(), name)
            for value, name in zip(
                lowered.graph.outputs(), lowered.outputs, strict=True
            )
        )
        self.used = set(self.values())
        self.containers = lowered.containers

    def __missing__(self, value: str) -> str:
        name = unique_name(tensor_name(value), self.used)
        self.used.add(name)
        self[value] = name
        return name


def with_axis(
    graph: Graph, inputs: Sequence[bool], outputs: Sequence[bool]
) -> tuple[int, int]:
    """Rewrite the graph so that these inputs and outputs have the shape [1], and () inside. Returns
    the numbers of nodes added at the start and at the end.
    """
    first = ir.first_node(graph)
    before = _count(graph)
    for value, bare in zip(list(graph.inputs()), inputs, strict=True):
        if bare:
            scalar = _reshaped(graph, value, [], first)
            value.replaceAllUsesAfterNodeWith(scalar.node(), scalar)
    between = _count(graph)
    for position, (value, bare) in enumerate(
        zip(list(graph.outputs()), outputs, strict=True)
    ):
        if bare:
            graph.return_node().replaceInput(
                position, _reshaped(graph, value, [1], graph.return_node())
            )
    return between - before, _count(graph) - between


def takes_axis(node: Node, inputs: Collection[str]) -> bool:
    """Whether the node is a reshape of a graph input to 0-d that with_axis added."""
    if node.kind() != "aten::reshape" or node.inputsAt(0).debugName() not in inputs:
        return False
    return ir.int_list(node.inputsAt(1)) == []


def _count(graph: Graph) -> int:
    return sum(1 for _ in graph.nodes())


def _reshaped(graph: Graph, value: Value, shape: list[int], before: Node) -> Value:
    # torch does not print an empty list as a constant
    lengths = [ir.insert_constant(graph, length, before) for length in shape]
    sizes = ir.insert(
        graph, "prim::ListConstruct", lengths, before, types=[ir.C.ListType.ofInts()]
    )
    return ir.insert(graph, "aten::reshape", [value, sizes.output()], before).output()
