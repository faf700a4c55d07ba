"""Inputs and outputs in another form: casts and permutations at the graph's inputs and outputs, so
that the rest of the graph does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from builder.dtypes import code_of
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.graph import LoweredGraph
from builder.lowering.passes.strides import STRIDE_READERS


def half(
    lowered: LoweredGraph, inputs: Collection[int], outputs: Collection[int]
) -> LoweredGraph:
    """The same graph with these inputs (by position) received in float16 and cast to float32, and
    these outputs cast to float16.
    """
    return cast(
        lowered,
        dict.fromkeys(inputs, torch.float32),
        dict.fromkeys(outputs, torch.float16),
    )


def cast(
    lowered: LoweredGraph,
    inputs: Mapping[int, torch.dtype],
    outputs: Mapping[int, torch.dtype],
) -> LoweredGraph:
    """The same graph with casts: each of these inputs (by position) is cast to its original dtype
    inside the graph, and each of these outputs is cast to another dtype.
    """
    graph = lowered.graph.copy()
    values = list(graph.inputs())
    for index, dtype in sorted(inputs.items()):
        before = ir.first_node(graph)
        widened = _cast(graph, values[index], dtype, before)
        values[index].replaceAllUsesAfterNodeWith(widened.node(), widened)
    for index, dtype in sorted(outputs.items()):
        narrowed = _cast(
            graph, graph.return_node().inputsAt(index), dtype, graph.return_node()
        )
        graph.return_node().replaceInput(index, narrowed)
    return replace(lowered, graph=graph)


def _cast(graph: Graph, value: Value, dtype: torch.dtype, before: Node) -> Value:
    options = (code_of(dtype), False, False, None)
    return Emit(graph, before).op("aten::to", value, *options)


Axes = Mapping[int, tuple[int, int]]
"""By position among the inputs or outputs: (the axis to move to the front, the tensor's rank)."""


def axes_first(lowered: LoweredGraph, inputs: Axes, outputs: Axes) -> LoweredGraph:
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
    emit = Emit(graph, ir.first_node(graph))
    permuted = emit.op("aten::permute", value, back)
    if ir.nodes_of(graph, *STRIDE_READERS):  # they were accepted for contiguous inputs
        permuted = emit.op("aten::contiguous", permuted, 0)
    value.replaceAllUsesAfterNodeWith(permuted.node(), permuted)


def _permute_output(graph: Graph, index: int, axis: int, rank: int) -> None:
    end = graph.return_node()
    order = [axis, *range(axis), *range(axis + 1, rank)]
    end.replaceInput(
        index, Emit(graph, end).op("aten::permute", end.inputsAt(index), order)
    )
