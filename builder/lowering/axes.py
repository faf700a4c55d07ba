"""Move the batch axis of a graph's inputs and outputs to the front, for formats that require it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from builder.graph_types import Graph, Value
from builder.lowering import ir
from builder.lowering.graph import LoweredGraph

Axes = Mapping[int, tuple[int, int]]
"""By position among the inputs or outputs: (the axis to move to the front, the tensor's rank)."""


def first(lowered: LoweredGraph, inputs: Axes, outputs: Axes) -> LoweredGraph:
    """The same graph with these axes of these inputs and outputs moved to the front; the others
    keep their order.

    A permutation is added at each input and output, so that the rest of the graph does not change.
    """
    graph = lowered.graph.copy()
    values = list(graph.inputs())
    for index, (axis, rank) in inputs.items():
        _permute_input(graph, values[index], axis, rank)
    for index, (axis, rank) in outputs.items():
        _permute_output(graph, index, axis, rank)
    return replace(lowered, graph=graph)


def _permute_input(graph: Graph, value: Value, axis: int, rank: int) -> None:
    """Let every user of the input read it with the first axis moved back to its position."""
    back = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    before = ir.first_node(graph)
    order = ir.insert_constant(graph, back, before)
    node = ir.insert(graph, "aten::permute", [value, order], before)
    value.replaceAllUsesAfterNodeWith(node, node.output())


def _permute_output(graph: Graph, index: int, axis: int, rank: int) -> None:
    order = ir.insert_constant(
        graph, [axis, *range(axis), *range(axis + 1, rank)], graph.return_node()
    )
    node = ir.insert(
        graph,
        "aten::permute",
        [graph.return_node().inputsAt(index), order],
        graph.return_node(),
    )
    graph.return_node().replaceInput(index, node.output())
