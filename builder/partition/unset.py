"""Tensors that a branch leaves unset. The program never reads them, but torch cannot return them
from a segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from builder.graph_types import Graph, Value
from builder.lowering import ir


def set_tensors(graph: Graph, values: Sequence[torch.Tensor]) -> None:
    """Replace each unset tensor that the graph may return. `values` has the replacement for each
    output.
    """
    for output, value in zip(graph.outputs(), values, strict=True):
        _set(graph, output, value)


def _set(graph: Graph, output: Value, value: torch.Tensor) -> None:
    node, at = output.node(), output.offset()
    if node.kind() == "prim::Uninitialized":
        if output.type().kind() == "TensorType":
            ir.replace(node, [ir.insert_constant(graph, value, node)])
    elif node.kind() == "prim::If":
        for end in ir.branch_ends(output):
            _set(graph, end, value)
    elif node.kind() == "prim::Loop":
        body = ir.first_block(node)
        _set(graph, node.inputsAt(at + 2), value)
        _set(graph, list(body.outputs())[at + 1], value)
