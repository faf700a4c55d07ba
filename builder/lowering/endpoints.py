"""Endpoints in float16: the casts stand at the graph's borders, so that nothing within it
changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from builder.lowering import ir
from builder.lowering.facts import NUMBERS
from builder.lowering.graph import LoweredGraph


def half(lowered: LoweredGraph, inputs: Collection[int], outputs: Collection[int]) -> LoweredGraph:
    """The same computation with these inputs (by place) taken in float16 and widened, and these
    outputs narrowed.
    """
    graph = lowered.graph.copy()
    given = list(graph.inputs())
    for index in sorted(inputs):
        before = next(iter(graph.nodes()), graph.return_node())
        cast = _cast(graph, given[index], torch.float32, before)
        given[index].replaceAllUsesAfterNodeWith(cast, cast.output())
    for index in sorted(outputs):
        cast = _cast(graph, graph.return_node().inputsAt(index), torch.float16, graph.return_node())
        graph.return_node().replaceInput(index, cast.output())
    return replace(lowered, graph=graph)


def _cast(graph: Any, value: Any, dtype: torch.dtype, before: Any) -> Any:
    rest = [
        ir.insert_constant(graph, argument, before)
        for argument in (NUMBERS[dtype], False, False, None)
    ]
    return ir.insert(graph, "aten::to", [value, *rest], before)
