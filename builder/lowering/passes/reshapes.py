"""Merge a reshape that splits axes with an earlier one that joined them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.amounts import Amount, of_item, of_size, product
from builder.lowering.passes.moves import MOVES, moved
from builder.lowering.passes.widths import width


@lowering_pass("merge-reshapes", touches=("aten::reshape",))
def merge_reshapes(graph: Graph, context: Context) -> None:
    """`x.reshape(t, b * h, d).transpose(0, 1).reshape(b, h, t, d)` is `x.reshape(t, b, h,
    d).permute(1, 2, 0, 3)`, and a linear layer between `reshape(t * b, d)` and `reshape(t, b, e)`
    is the layer of `reshape(t, b, d)`. nn.MultiheadAttention has this form.

    TensorRT recognizes attention by products of rank 4, and some versions compute reshapes of
    reshapes incorrectly.
    """
    for node in ir.nodes_of(graph, "aten::size"):
        length = _length(node)
        if length is not None:
            if isinstance(length, int):
                length = ir.insert_constant(graph, length, node)
            ir.replace(node, [length])
    for node in ir.nodes_of(graph, "aten::reshape"):
        if not ir.in_fallback(node):
            _merge(graph, node)


def _length(node: Node) -> Value | None:
    """The value of an axis's size in the list of the reshape that created the axis, transposed or
    not.
    """
    axis = None
    if node.inputsSize() == 2:
        axis = ir.constant(node.inputsAt(1))
    path = None if axis is None or ir.in_fallback(node) else _path(node.inputsAt(0))
    if axis is None or path is None or path.layer is not None:
        return None
    order = path.order
    sizes = ir.list_items(path.first.inputsAt(1))
    if sizes is None or not -len(order) <= axis < len(order):
        return None
    size = sizes[order[axis]]
    return None if _amount(size) is None else size


class _Path(NamedTuple):
    """The first reshape, the order of its axes at the second one, and the linear layer between
    them, if any.
    """

    first: Any
    order: list[int]
    layer: Any = None


def _path(value: Value) -> _Path | None:
    """Follow a value back to a reshape, through transposes only or through one linear layer
    only.
    """
    node = value.node()
    moves = []
    if (
        width(value) is not None
        and node.kind() == "aten::linear"
        and len(value.uses()) == 1
        and not ir.in_fallback(node)
    ):
        first = node.inputsAt(0).node()
        sizes = None
        if first.kind() == "aten::reshape":
            sizes = ir.list_items(first.inputsAt(1))
        if sizes is None:
            return None
        return _Path(first, list(range(len(sizes))), node)
    while node.kind() in MOVES and not ir.in_fallback(node):
        moves.append(node)
        node = node.inputsAt(0).node()
    if node.kind() == "aten::reshape" and not ir.in_fallback(node):
        sizes = ir.list_items(node.inputsAt(1))
    else:
        sizes = None
    order = None if sizes is None else list(range(len(sizes)))
    for move in reversed(moves):
        order = None if order is None else moved(move, order)
    return None if order is None else _Path(node, order)


def _merge(graph: Graph, node: Node) -> None:
    path = _path(node.inputsAt(0))
    requested = ir.list_items(node.inputsAt(1))
    sizes = None
    if path is not None:
        sizes = ir.list_items(path.first.inputsAt(1))
    if path is None or sizes is None or requested is None:
        return
    axes = sizes
    if path.layer is not None:
        axes = [*sizes[:-1], width(path.layer.output())]
    groups = _groups([axes[axis] for axis in path.order], requested)
    if groups is None or all(len(group) == 1 for group in groups):
        return
    sizes_of_axis = dict(zip(path.order, groups, strict=True))
    if path.layer is not None:
        if len(groups[-1]) != 1:
            return
        sizes_of_axis[len(sizes) - 1] = [sizes[-1]]
    emit = Emit(graph, node)
    value = emit.op(
        "aten::reshape",
        path.first.inputsAt(0),
        emit.ints([i for axis in sorted(sizes_of_axis) for i in sizes_of_axis[axis]]),
    )
    ir.replace(node, [_arranged(emit, path, sizes_of_axis, value)])


def _arranged(
    emit: Emit, path: _Path, sizes_of_axis: dict[int, list[Value]], value: Value
) -> Value:
    """The nodes between the two reshapes, applied to the value that has all axes."""
    if path.layer is not None:
        return emit.op("aten::linear", value, *list(path.layer.inputs())[1:])
    starts = {
        axis: sum(len(sizes_of_axis[before]) for before in range(axis))
        for axis in sizes_of_axis
    }
    order = [
        starts[axis] + number
        for axis in path.order
        for number in range(len(sizes_of_axis[axis]))
    ]
    if order == sorted(order):
        return value
    return emit.op("aten::permute", value, order)


def _groups(
    sizes: Sequence[Value | int], requested: Sequence[Value]
) -> list[list[Any]] | None:
    """The requested sizes that each axis is split into, by axis; None if they do not fit."""
    groups = []
    at = 0
    for size in sizes:
        group = _group(size, requested[at:])
        if group is None:
            return None
        at += len(group)
        if _amount(group[0]) is None:
            group = [size]
        groups.append(group)
    return groups if at == len(requested) else None


def _group(size: Value | int, requested: Sequence[Value]) -> list[Any] | None:
    """The leading requested sizes whose product is this one. An inferred size is the remaining
    factor.
    """
    whole = _amount(size)
    if requested and _amount(requested[0]) is None:
        return [requested[0]]
    factors: list[Amount] = []
    for count, item in enumerate(requested, 1):
        factor = _amount(item)
        if factor is None or whole is None:
            return None
        factors.append(factor)
        if product(factors) == whole:
            return list(requested[:count])
    return None


def _amount(item: Value | int) -> Amount | None:
    """The product for a size; None for an inferred size."""
    return of_item(item, _size)


def _size(node: Node) -> Amount | None:
    """The product for a size that is read from a tensor."""
    if (
        node.kind() != "aten::size"
        or node.inputsSize() != 2
        or not ir.is_constant(node.inputsAt(1))
    ):
        return None
    return of_size(*_source(node.inputsAt(0)), ir.constant(node.inputsAt(1)))


def _source(value: Value) -> tuple[int, int]:
    """A key that is equal for tensors of one shape: layers of one input and one width share it.
    The width is -1 if no layer computes the value.
    """
    last = None
    if value.node().kind() == "aten::linear":
        last = width(value)
    if last is None:
        return (value.unique(), -1)
    return (value.node().inputsAt(0).unique(), last)
