"""Transposes moved behind the layers that do not see them, until they meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builder.analysis import weight_shape
from builder.graph_types import Graph, Node, Type, Value
from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.amounts import Piece
from builder.lowering.passes.dtypes import bottom_up, input_facts, input_shapes
from builder.lowering.passes.functionalise.views import Emit
from builder.lowering.passes.lengths import Lengths
from builder.lowering.passes.moves import MOVES, axis_at, moved
from builder.lowering.passes.widths import source, width


@lowering_pass("sink-transposes", touches=MOVES)
def sink_transposes(graph: Graph, context: Context) -> None:
    """`linear(x.transpose(0, 1))` is `linear(x).transpose(0, 1)`, and a transpose goes behind a
    reshape that takes axes apart, where it joins those that follow: two become one, or none. One
    after a layer moves before it where it joins another there.

    nn.MultiheadAttention with batch_first puts the time before the batch for its layers. TensorRT
    may make of a layer of such a value a product for each time step: measured on an H200 (ViT-B,
    fp16), 75 to 104 us instead of 8.
    """
    if not any(_may_move(node) for node in ir.nodes_of(graph, *MOVES)):
        return
    facts = input_facts(graph, context)
    lengths = Lengths(facts, input_shapes(graph, context))
    constants = ir.Constants(graph)
    for node in bottom_up(graph):
        rule = None if ir.in_fallback(node) else _RULES.get(node.kind())
        made = None if rule is None else rule(_Emit(graph, node, lengths, constants), node)
        if made is None:
            lengths.learn(node)
        else:
            ir.replace(node, [made])


def _may_move(node: Node) -> bool:
    """Whether a rule reads a transpose together with its neighbors, as far as their kinds show."""
    beside = [node.inputsAt(0).node(), *(use.user for use in node.output().uses())]
    return any(other.kind() in _RULES for other in beside)


class _Emit(Emit):
    """One that learns the shapes of what it makes."""

    def __init__(self, graph: Graph, at: Node, lengths: Lengths, constants: ir.Constants) -> None:
        super().__init__(graph, at, shared=constants)
        self.lengths = lengths

    def op(self, kind: str, *args: object, type: Type | None = None) -> Value:
        made = super().op(kind, *args, type=type)
        self.lengths.learn(made.node())
        return made

    def order(self, node: Node) -> list[int] | None:
        """How a transpose arranges the axes of what it reads; None where that is not known, or for
        any other node.
        """
        shape = (
            self.lengths.shape(node.inputsAt(0))
            if node.kind() in MOVES and not ir.in_fallback(node)
            else None
        )
        return None if shape is None else moved(node, range(len(shape)))

    def pieces(self, node: Node) -> list[Piece] | None:
        """What reshape makes of the axes that it reads."""
        shape, items = self.lengths.shape(node.inputsAt(0)), ir.list_items(node.inputsAt(1))
        if shape is None or items is None:
            return None
        return self.lengths.pieces(shape, [self.lengths.of(item) for item in items])

    def permuted(self, value: Value, order: Sequence[int]) -> Value:
        """The value's axes in this order, with the transposes before it taken into account."""
        if list(order) == sorted(order):
            return value
        before = self.order(value.node())
        if before is not None:
            return self.permuted(value.node().inputsAt(0), [before[axis] for axis in order])
        made = self.before_layer(value, order) if self.is_ours(value) else None
        return self.op("aten::permute", value, list(order)) if made is None else made

    def before_layer(self, value: Value, order: Sequence[int]) -> Value | None:
        """The value permuted by permuting what its producer reads, if that is a transpose;
        else None.
        """
        node = value.node()
        if node.kind() == "aten::reshape":
            return self._before_join(node, order)
        if node.kind() != "aten::linear" or not _is_layer(node) or order[-1] != len(order) - 1:
            return None
        read = node.inputsAt(0)
        joined = read.node().kind() == "aten::reshape" and self.is_ours(read)
        made = self._before_join(read.node(), order) if joined else None
        if made is None:
            return None
        layer = self.op("aten::linear", made, *ir.inputs(node)[1:])
        # engines name layers by the module, which is not the transpose's
        ir.adopt(layer.node(), node)
        return layer

    def _before_join(self, node: Node, order: Sequence[int]) -> Value | None:
        """`reshape` that only joins axes, permuted before it does; None where no transpose is
        before it.
        """
        before = node.inputsAt(0).node()
        found = None if self.order(before) is None else self.pieces(node)
        if found is None or len({piece.before for piece in found}) != len(found):
            return None
        parts = [[piece.before for piece in found if piece.after == axis] for axis in order]
        items = ir.list_items(node.inputsAt(1)) or []
        value = self.permuted(before.output(), [axis for part in parts for axis in part])
        return self.op(
            "aten::reshape", value, self.ints([self.known(items[axis]) for axis in order])
        )

    def known(self, item: Value) -> Any:
        """A size in a list, as a number where it is one."""
        length = self.lengths.of(item)
        return item if length is None or length.names else length.number

    def is_ours(self, value: Value) -> bool:
        """Whether the node that makes the value can be made again: it has no other reader, and it
        runs as often.
        """
        node = value.node()
        alone = len(value.uses()) <= 1 and not ir.in_fallback(node)
        return alone and node.owningBlock() == self.at.owningBlock()


def _is_layer(node: Node) -> bool:
    """Whether linear acts on the last axis alone: its weight is a matrix, its bias a vector."""
    bias = node.inputsAt(2)
    return width(node.output()) is not None and (
        ir.is_none(bias) or len(weight_shape(bias) or ()) == 1
    )


def _behind_layer(emit: _Emit, node: Node) -> Value | None:
    move = node.inputsAt(0).node()
    order = emit.order(move)
    if order is None or order[-1] != len(order) - 1 or not _is_layer(node):
        return None
    return emit.permuted(emit.op("aten::linear", move.inputsAt(0), *ir.inputs(node)[1:]), order)


def _behind_reshape(emit: _Emit, node: Node) -> Value | None:
    """Where axes are taken apart. One that joins some of them, too, does that last: only where a
    transpose follows, which then comes first.
    """
    move = node.inputsAt(0).node()
    if move.kind() == "aten::reshape" and not ir.in_fallback(move):
        made = emit.op("aten::reshape", move.inputsAt(0), node.inputsAt(1))
        return _behind_reshape(emit, made.node()) or made
    order = emit.order(move)
    found = None if order is None else emit.pieces(node)
    if order is None or found is None or len({piece.before for piece in found}) == len(found):
        return None
    joins = len({piece.after for piece in found}) < len(found)
    if joins and not _is_moved(node.output()):
        return None
    places = sorted(range(len(found)), key=lambda at: (order[found[at].before], at))
    sizes = [_size(emit, node, order, found, at) for at in places]
    if None in sizes:
        return None
    value = emit.op("aten::reshape", move.inputsAt(0), emit.ints(sizes))
    value = emit.permuted(value, [places.index(at) for at in range(len(found))])
    return emit.op("aten::reshape", value, node.inputsAt(1)) if joins else value


def _is_moved(value: Value) -> bool:
    """Whether a transpose alone reads the value, or a layer that one alone reads."""
    users = [use.user for use in value.uses()]
    if len(users) != 1 or ir.in_fallback(users[0]):
        return False
    return users[0].kind() in MOVES or (
        users[0].kind() == "aten::linear" and _is_moved(users[0].output())
    )


def _size(emit: _Emit, node: Node, order: Sequence[int], found: Sequence[Piece], at: int) -> Any:
    """The length of one of the pieces as an item of a list, before the transpose; None where
    nothing is that size.
    """
    piece, items = found[at], ir.list_items(node.inputsAt(1)) or []
    if not piece.length.names:
        return piece.length.number
    if [other.after for other in found].count(piece.after) == 1 and emit.lengths.of(
        items[piece.after]
    ) is not None:
        return items[piece.after]
    if [other.before for other in found].count(piece.before) > 1:
        return None
    value, axis = source(node.inputsAt(0).node().inputsAt(0), order[piece.before], len(order))
    return emit.op("aten::size", value, axis, type=ir.INT)


def _behind_unflatten(emit: _Emit, node: Node) -> Value | None:
    move, count = node.inputsAt(0).node(), ir.list_length(node.inputsAt(2))
    order = emit.order(move)
    axis = None if order is None else axis_at(node, 1, len(order))
    if order is None or axis is None or not count:
        return None
    taken = order[axis]
    value = emit.op("aten::unflatten", move.inputsAt(0), taken, node.inputsAt(2))
    starts = [
        range(at, at + count) if at == taken else [at + (count - 1) * (at > taken)] for at in order
    ]
    return emit.permuted(value, [at for start in starts for at in start])


def _together(emit: _Emit, node: Node) -> Value | None:
    """Two transposes, or the nodes between them."""
    order, value = emit.order(node), node.inputsAt(0)
    if order is None or _turns_keys(node, order):
        return None
    if order == sorted(order):
        return value
    if emit.order(value.node()) is not None:
        return emit.permuted(value, order)
    return emit.before_layer(value, order) if emit.is_ours(value) else None


def _turns_keys(node: Node, order: Sequence[int]) -> bool:
    """Whether it is the transpose of a product's matrices: attention is known by it, and a product
    does it itself.
    """
    rank = len(order)
    last = list(order) == [*range(rank - 2), rank - 1, rank - 2]
    return last and any(use.user.kind() in _PRODUCTS for use in node.output().uses())


_PRODUCTS = ("aten::matmul", "aten::bmm", "aten::baddbmm")
_RULES = {
    "aten::linear": _behind_layer,
    "aten::reshape": _behind_reshape,
    "aten::unflatten": _behind_unflatten,
    **dict.fromkeys(MOVES, _together),
}
"""By operator: what it is made of instead, or None."""
