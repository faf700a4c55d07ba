"""Numbers that a loop or branch makes beside tensors: they can be neither made twice nor cross; a
0-d tensor can.
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
    "IntType": ("aten::Int", torch.int64),
    "FloatType": ("aten::Float", torch.float64),
    "BoolType": ("aten::Bool", torch.bool),
}
"""By the kind of a number's type what takes it out of a tensor, and the dtype in which it crosses
without loss.
"""


def hand_over(graph: Graph) -> list[int]:
    """Let every number that a node makes beside tensors be read through a 0-d tensor of it; the
    graph is changed.

    Returns for each node its former position; a new one has that of the node whose number it passes
    on.
    """
    positions: list[int] = []
    nodes = list(graph.nodes())
    for position, (node, following) in enumerate(
        zip(nodes, [*nodes[1:], graph.return_node()], strict=True)
    ):
        positions += [position] * (
            1 + sum(_through_a_tensor(graph, value, following) for value in _numbers(node))
        )
    return positions


def _numbers(node: Node) -> Iterator[Any]:
    """The numbers among the node's outputs that are read, where it cannot be computed again
    for each of them.
    """
    made = list(node.outputs())
    if len(made) > 1 and not all(map(is_tensor, made)) and not is_free(node):
        yield from (value for value in made if value.type().kind() in READERS and value.uses())


def _through_a_tensor(graph: Graph, value: Value, before: Node) -> int:
    """How many nodes that took."""
    reader, dtype = READERS[value.type().kind()]
    options = [
        ir.insert_constant(graph, option, before, value.node())
        for option in (code_of(dtype), None, False)
    ]
    tensor = ir.insert(graph, "aten::tensor", [value, *options], before, [ir.TENSOR], value.node())
    number = ir.insert(graph, reader, [tensor.output()], before, [value.type()], value.node())
    value.replaceAllUsesAfterNodeWith(tensor, number.output())
    return len(options) + 2
