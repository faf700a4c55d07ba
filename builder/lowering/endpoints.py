"""Endpoints in other dtypes: the casts stand at the graph's borders, so that nothing within it
changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from builder.dtypes import code_of
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.graph import LoweredGraph


def half(lowered: LoweredGraph, inputs: Collection[int], outputs: Collection[int]) -> LoweredGraph:
    """The same computation with these inputs (by position) taken in float16 and widened, and these
    outputs narrowed.
    """
    return cast(
        lowered, dict.fromkeys(inputs, torch.float32), dict.fromkeys(outputs, torch.float16)
    )


def cast(
    lowered: LoweredGraph, inputs: Mapping[int, torch.dtype], outputs: Mapping[int, torch.dtype]
) -> LoweredGraph:
    """The same computation behind casts: each of these inputs (by position) is cast to its own
    dtype within the graph, and each of these outputs is given in another.
    """
    graph = lowered.graph.copy()
    given = list(graph.inputs())
    for index, dtype in sorted(inputs.items()):
        before = next(iter(graph.nodes()), graph.return_node())
        widened = _cast(graph, given[index], dtype, before)
        given[index].replaceAllUsesAfterNodeWith(widened, widened.output())
    for index, dtype in sorted(outputs.items()):
        given_as = _cast(graph, graph.return_node().inputsAt(index), dtype, graph.return_node())
        graph.return_node().replaceInput(index, given_as.output())
    return replace(lowered, graph=graph)


def _cast(graph: Graph, value: Value, dtype: torch.dtype, before: Node) -> Node:
    rest = [
        ir.insert_constant(graph, argument, before)
        for argument in (code_of(dtype), False, False, None)
    ]
    return ir.insert(graph, "aten::to", [value, *rest], before)
