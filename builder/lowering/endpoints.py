"""Inputs and outputs in other dtypes: casts at the graph's inputs and outputs, so that the rest of
the graph does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from builder.dtypes import code_of
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.graph import LoweredGraph


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
        values[index].replaceAllUsesAfterNodeWith(widened, widened.output())
    for index, dtype in sorted(outputs.items()):
        narrowed = _cast(
            graph, graph.return_node().inputsAt(index), dtype, graph.return_node()
        )
        graph.return_node().replaceInput(index, narrowed.output())
    return replace(lowered, graph=graph)


def _cast(graph: Graph, value: Value, dtype: torch.dtype, before: Node) -> Node:
    options = [
        ir.insert_constant(graph, argument, before)
        for argument in (code_of(dtype), False, False, None)
    ]
    return ir.insert(graph, "aten::to", [value, *options], before)
