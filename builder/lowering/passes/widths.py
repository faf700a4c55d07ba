"""Fold the size of a last axis if a layer with constant weights determines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builder.analysis import weight_shape
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.dtypes import bottom_up, input_facts, input_shapes
from builder.lowering.passes.moves import MOVES, moved


@lowering_pass("fold-widths", touches=("aten::size",))
def fold_widths(graph: Graph, context: Context) -> None:
    """Replace the size of the last axis of an input or output of linear, layer_norm or embedding by
    the number that the weights determine.

    The other sizes of a linear's output are those of its input, and the sizes of a transposed
    tensor are those of the tensor. Attention divides the width by its number of heads, so that the
    shapes of its heads become known.
    """
    sizes = (
        node
        for node in ir.nodes_of(graph, "aten::size")
        if node.inputsSize() == 2 and not ir.in_fallback(node)
    )
    determined = {node.output().unique() for node in sizes if _determines(node)}
    if not determined:
        return
    facts = input_facts(graph, context)
    static = input_shapes(graph, context)
    for node in bottom_up(graph):
        if node.kind() == "aten::size" and node.output().unique() in determined:
            _fold(graph, node, facts.rank(node.inputsAt(0)), static)
        else:
            facts.learn(node)


def _determines(size: Node) -> bool:
    value = size.inputsAt(0)
    return value.node().kind() in MOVES or _width(value, size) is not None


def _fold(
    graph: Graph, node: Node, rank: int | None, static: Mapping[int, Sequence[Any]]
) -> None:
    axis = ir.constant(node.inputsAt(1))
    if axis is None or rank == 0 or (rank is None and axis != -1):
        return
    value = node.inputsAt(0)
    last = None
    if axis in (-1, (rank or 0) - 1):
        last = _width(node.inputsAt(0), node)
    if rank is not None:
        value, axis = source(value, axis % rank, rank)
        if last is None and axis == rank - 1:
            last = _width(value, node)
    length = last
    if value.unique() in static:
        length = static[value.unique()][axis]
    if isinstance(length, int) and length >= 0:
        ir.replace(node, [ir.insert_constant(graph, length, node)])
    elif value != node.inputsAt(0):
        node.replaceInput(0, value)
        node.replaceInput(1, ir.insert_constant(graph, axis, node))


def source(value: Value, axis: int, rank: int) -> tuple[Any, int]:
    """The tensor, and its axis, whose size this axis has."""
    while True:
        node = value.node()
        if ir.in_fallback(node):
            return value, axis
        if (
            node.kind() == "aten::linear"
            and axis != rank - 1
            and width(value) is not None
        ):
            value = node.inputsAt(0)
        elif node.kind() in MOVES and (order := moved(node, range(rank))) is not None:
            value = node.inputsAt(0)
            axis = order[axis]
        else:
            return value, axis


def width(value: Value) -> int | None:
    """The length of the last axis of a tensor from a layer with constant weights; None if not
    known.
    """
    node = value.node()
    if node.kind() in _WIDTHS_OF_RESULTS:
        return _WIDTHS_OF_RESULTS[node.kind()](node)
    return None


def is_layer(node: Node) -> bool:
    """Whether linear acts only on the last axis: its weight is a matrix, its bias a vector."""
    bias = node.inputsAt(2)
    return width(node.output()) is not None and (
        ir.is_none(bias) or len(weight_shape(bias) or ()) == 1
    )


def _width(value: Value, at: Node) -> int | None:
    """The length of the last axis of an output of such a layer, or of an input that it reads
    whenever the node `at` runs. A branch that is not taken may have another width.
    """
    length_from_producer = width(value)
    if length_from_producer is not None:
        return length_from_producer
    blocks = _blocks_around(at)
    for use in value.uses():
        user = use.user
        if (
            user.kind() in _WIDTHS_OF_INPUTS
            and use.offset == 0
            and user.owningBlock() in blocks
        ):
            length = _WIDTHS_OF_INPUTS[user.kind()](user)
            if length is not None:
                return length
    return None


def _blocks_around(node: Node) -> list[Any]:
    blocks = []
    while node is not None:
        blocks.append(node.owningBlock())
        node = blocks[-1].owningNode()
    return blocks


def _matrix_size(weight: Value, axis: int) -> int | None:
    shape = weight_shape(weight)
    if shape is not None and len(shape) == 2:
        return shape[axis]
    return None


def _normalized(node: Node) -> int | None:
    shape = ir.int_list(node.inputsAt(1))
    return shape[-1] if shape else None


_WIDTHS_OF_RESULTS = {
    "aten::linear": lambda node: _matrix_size(node.inputsAt(1), 0),
    "aten::embedding": lambda node: _matrix_size(node.inputsAt(0), 1),
    "aten::layer_norm": _normalized,
}
_WIDTHS_OF_INPUTS = {
    "aten::linear": lambda node: _matrix_size(node.inputsAt(1), 1),
    "aten::layer_norm": _normalized,
}
