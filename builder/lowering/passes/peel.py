"""The first iteration of a loop whose carried values are None only before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.folding import propagate_constants, take_static_branches
from builder.lowering.passes import Context
from builder.lowering.passes.unroll import copy_body

_SAME_SHAPE = frozenset(
    f"aten::{name}"
    for name in "relu gelu silu tanh sigmoid dropout layer_norm contiguous clone".split()
)
"""Operators whose result has the shape of their first input."""
_CHECKS = ("aten::__is__", "aten::__isnot__")
_NEVER_NONE = ("prim::Loop", "prim::Param", "prim::TupleConstruct")
"""The nodes whose results of type Tensor or tuple are compared with None after the rewrite."""

Sizes = Sequence[int | None]
"""The smallest size of each axis, None where it is not known."""


def peel(graph: Graph, context: Context) -> None:
    """Execute the first iteration of such loops before the loop, if there always is one."""
    inputs = {
        value.unique(): _smallest(spec)
        for value, spec in zip(graph.inputs(), context.specs, strict=False)
    }
    loops = [
        loop
        for loop in ir.nodes_of(graph, "prim::Loop")
        if _set_in_loop(loop) and _runs(loop, inputs)
    ]
    for loop in loops:
        _peel(graph, loop)
    # a branch that is resolved may give the value of a loop to the next comparison
    while loops and _replace_checks(graph):
        propagate_constants(graph)
        take_static_branches(graph)


def _smallest(spec: Any) -> Sizes:
    return [
        axis if isinstance(axis, int) else spec.dims.get(axis, (None,))[0]
        for axis in spec.shape
    ]


def _set_in_loop(loop: Node) -> list[int]:
    """The indices of carried values that are None before the loop and in no later iteration."""
    starts = ir.inputs(loop)[2:]
    ends = list(ir.first_block(loop).outputs())[1:]
    return [
        index
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
        if ir.is_none(start) and end.type().kind() not in ("OptionalType", "NoneType")
    ]


def _runs(loop: Node, inputs: Mapping[int, Sizes]) -> bool:
    """Whether the loop has at least one iteration at all sizes that the inputs may have."""
    if ir.constant(loop.inputsAt(1)) is not True:
        return False
    count = _least(loop.inputsAt(0), inputs)
    return count is not None and count >= 1


def _least(count: Value, inputs: Mapping[int, Sizes]) -> int | None:
    """The smallest value of a number that is constant or a size of an input; None if it is not
    known.
    """
    node = count.node()
    if isinstance(number := ir.constant(count), int):
        return number
    if node.kind() == "aten::__getitem__" and node.inputsAt(0).node().kind() == (
        "aten::size"
    ):
        tensor, axis = node.inputsAt(0).node().inputsAt(0), node.inputsAt(1)
    elif node.kind() == "aten::size" and node.inputsSize() == 2:
        tensor, axis = node.inputsAt(0), node.inputsAt(1)
    else:
        return None
    at, sizes = ir.constant(axis), _sizes(tensor, inputs)
    if sizes is None or not isinstance(at, int) or not -len(sizes) <= at < len(sizes):
        return None
    return sizes[at]


def _sizes(tensor: Value, inputs: Mapping[int, Sizes]) -> Sizes | None:
    """The smallest sizes of an input, or of a tensor that is computed from one."""
    if tensor.unique() in inputs:
        return inputs[tensor.unique()]
    node = tensor.node()
    if node.kind() in _SAME_SHAPE:
        return _sizes(node.inputsAt(0), inputs)
    if node.kind() == "aten::embedding":
        indices = _sizes(node.inputsAt(1), inputs)
        return None if indices is None else [*indices, None]
    if node.kind() == "aten::linear":
        rows = _sizes(node.inputsAt(0), inputs)
        return None if rows is None else [*rows[:-1], None]
    return None


def _peel(graph: Graph, loop: Node) -> None:
    """Copy the body before the loop, and let the loop begin with the second iteration."""
    indices = _set_in_loop(loop)
    emit = Emit(graph, loop)
    zero, one = (ir.insert_constant(graph, number, loop) for number in (0, 1))
    goes_on, *carried = copy_body(graph, loop, zero, ir.inputs(loop)[2:])
    remaining = emit.op("aten::sub", loop.inputsAt(0), one, type=ir.C.IntType.get())
    for index, value in enumerate((remaining, goes_on, *carried)):
        loop.replaceInput(index, value)
    body = ir.first_block(loop)
    counter, *parameters = body.inputs()
    first = next(iter(body.nodes()), body.returnNode())
    following = Emit(graph, first).op("aten::add", counter, one, type=counter.type())
    counter.replaceAllUsesAfterNodeWith(following.node(), following)
    for index in indices:
        for value in (parameters[index], loop.outputsAt(index)):
            value.setType(carried[index].type())


def _replace_checks(graph: Graph) -> bool:
    """Replace the comparisons with None of tuples and loop-carried values that are not None, and
    their casts. Returns whether there are any.
    """
    nodes = [
        node
        for node in ir.nodes_of(graph, *_CHECKS, "prim::unchecked_cast")
        if node.inputsAt(0).node().kind() in _NEVER_NONE
        and node.inputsAt(0).type().kind() in ("TensorType", "TupleType")
        and (node.kind() == "prim::unchecked_cast" or ir.is_none(node.inputsAt(1)))
    ]
    for node in nodes:
        if node.kind() == "prim::unchecked_cast":
            ir.bypass(node)
        else:
            answer = node.kind() == "aten::__isnot__"
            ir.replace(node, [ir.insert_constant(graph, answer, node)])
    return bool(nodes)
