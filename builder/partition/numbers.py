"""Numbers that a loop or branch returns together with tensors. They can be neither recomputed nor
boundary values, so each becomes a 0-d tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from builder.dtypes import code_of
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.partition.view import is_free, is_tensor

READERS = {
    "IntType": ("aten::Int", torch.int64, 0),
    "FloatType": ("aten::Float", torch.float64, 0.0),
    "BoolType": ("aten::Bool", torch.bool, False),
}
"""By the kind of a number's type: the operator that reads it from a tensor, the dtype that
represents it exactly, and the number where the program leaves it unset.
"""


def numbers_to_tensors(graph: Graph) -> list[int]:
    """Rewrite the graph in place so that every number that a node returns together with tensors is
    read through a 0-d tensor. Numbers that are unset on some path have no tensor, so they are set.

    Returns the former position of each node; a new node has that of its producer.
    """
    _set_numbers(graph)
    positions: list[int] = []
    nodes = list(graph.nodes())
    for position, (node, following) in enumerate(
        zip(nodes, [*nodes[1:], graph.return_node()], strict=True)
    ):
        positions += [position] * (
            1
            + sum(
                _through_a_tensor(graph, value, following) for value in _numbers(node)
            )
        )
    return positions


def _set_numbers(graph: Graph) -> None:
    """Replace each unset number by a constant. It is never read."""
    for node in ir.nodes_of(graph, "prim::Uninitialized"):
        kind = node.output().type().kind()
        if kind in READERS:
            ir.replace(node, [ir.insert_constant(graph, READERS[kind][2], node)])


def _numbers(node: Node) -> Iterator[Any]:
    """The used numbers among the node's outputs, if the node cannot be recomputed for each of
    them.
    """
    outputs = list(node.outputs())
    if len(outputs) > 1 and not all(map(is_tensor, outputs)) and not is_free(node):
        yield from (
            value
            for value in outputs
            if value.type().kind() in READERS and value.uses()
        )


def _through_a_tensor(graph: Graph, value: Value, before: Node) -> int:
    """Insert the nodes. Returns their number."""
    reader, dtype, _ = READERS[value.type().kind()]
    options = [
        ir.insert_constant(graph, option, before, value.node())
        for option in (code_of(dtype), None, False)
    ]
    tensor = ir.insert(
        graph, "aten::tensor", [value, *options], before, [ir.TENSOR], value.node()
    )
    number = ir.insert(
        graph, reader, [tensor.output()], before, [value.type()], value.node()
    )
    value.replaceAllUsesAfterNodeWith(tensor, number.output())
    return len(options) + 2
