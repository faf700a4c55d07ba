"""Rewrite arithmetic on sizes from 0-d tensors, as in a trace, to numbers, and fold static
arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass

_TO_NUMBER = (
    "aten::Int",
    "aten::Float",
    "aten::ScalarImplicit",
    "aten::item",
    "aten::IntImplicit",
    "aten::FloatImplicit",
)
_SCALAR = {
    "aten::add": "aten::add",
    "aten::sub": "aten::sub",
    "aten::mul": "aten::mul",
    "aten::floor_divide": "aten::floordiv",
}
_ROUNDED = {"floor": "aten::floordiv", "trunc": "aten::__round_to_zero_floordiv"}


@lowering_pass("fold-scalar-chains", touches=_TO_NUMBER)
def fold_scalar_chains(graph: Graph, context: Context) -> None:
    """Rewrite `Int(NumToTensor(n))` to n, through the integer arithmetic between them; also for
    Float, item and ScalarImplicit.

    Only integers are followed through arithmetic: a 0-d floating-point tensor may be float32, and a
    number is float64.
    """
    for node in ir.nodes_of(graph, *context.present(*_TO_NUMBER)):
        source = node.inputsAt(0)
        if source.type().kind() != "TensorType":
            continue
        number = _direct(source, node) or _integer(graph, source, node)
        if number is not None:
            ir.replace(node, [_as_type(graph, node, number)])


def _direct(value: Value, node: Node) -> Any | None:
    """The number that a 0-d tensor was created from."""
    producer = value.node()
    if producer.kind() == "prim::NumToTensor" and producer.inputsAt(
        0
    ).type().kind() in (
        "IntType",
        "FloatType",
        "BoolType",
    ):
        return producer.inputsAt(0)
    return None


def _integer(graph: Graph, value: Value, at: Node) -> Any | None:
    """A value of type int that equals a 0-d integer tensor, or None. New nodes are inserted at
    `at`, or beside the tensor's node.
    """
    node = value.node()
    if (
        node.kind() == "prim::NumToTensor"
        and node.inputsAt(0).type().kind() == "IntType"
    ):
        return node.inputsAt(0)
    constant = ir.constant(value)
    if isinstance(constant, int) and not isinstance(constant, bool):
        # a number that a trace wrapped in a tensor reads as a number
        return ir.insert_constant(graph, constant, at)
    if isinstance(constant, torch.Tensor):
        whole = constant.dim() == 0 and constant.dtype in (torch.int64, torch.int32)
        if whole:
            return ir.insert_constant(graph, int(constant), at)
        return None
    return _arithmetic(graph, node)


def _arithmetic(graph: Graph, node: Node) -> Any | None:
    kind = node.kind()
    args = ir.inputs(node)
    operator = _SCALAR.get(kind)
    if kind == "aten::div" and len(args) == 3:
        operator = _ROUNDED.get(str(ir.constant(args[2])))
    elif kind in ("aten::add", "aten::sub") and ir.constant(args[2]) != 1:
        return None
    if operator is None or any(
        arg.type().kind() not in ("TensorType", "IntType") for arg in args[:2]
    ):
        return None
    numbers = [
        arg if arg.type().kind() == "IntType" else _integer(graph, arg, node)
        for arg in args[:2]
    ]
    if any(number is None for number in numbers):
        return None
    return Emit(graph, node).op(operator, *numbers, type=ir.INT)


def _as_type(graph: Graph, node: Node, number: Value) -> Value:
    """`number` with the type that the node returns: Int and Float convert, the others keep the
    type.
    """
    result_type = node.output().type()
    kind = number.type().kind()
    if result_type.kind() == kind or result_type.kind() == "NumberType":
        return number
    convert = {
        "IntType": "aten::Int",
        "FloatType": "aten::Float",
        "BoolType": "aten::Bool",
    }[result_type.kind()]
    return Emit(graph, node).op(convert, number, type=result_type)


@lowering_pass(
    "fold-sizes", touches=("aten::__getitem__", "aten::len", "prim::ListUnpack")
)
def fold_sizes(graph: Graph, context: Context) -> None:
    """Read one size at a time: `x.size()[0]` is `x.size(0)`, also in `n, t, c = x.size()`. Fold
    reads of constants and of lists that the graph builds.
    """
    for node in ir.nodes_of(graph, "prim::ListUnpack"):
        sizes = _all_sizes(node.inputsAt(0))
        if sizes is not None and not ir.in_fallback(node):
            emit = Emit(graph, node, sizes)
            x = sizes.inputsAt(0)
            axes = range(node.outputsSize())
            results = [emit.op("aten::size", x, axis, type=ir.INT) for axis in axes]
            ir.replace(node, results)
    for node in ir.nodes_of(graph, "aten::__getitem__"):
        sizes = _all_sizes(node.inputsAt(0))
        axis = node.inputsAt(1)
        if sizes is not None and ir.is_constant(axis):
            emit = Emit(graph, node)
            size = emit.op("aten::size", sizes.inputsAt(0), axis, type=ir.INT)
            ir.replace(node, [size])
    for node in ir.nodes_of(graph, "aten::len"):
        sizes = _all_sizes(node.inputsAt(0))
        if sizes is not None:
            rank = Emit(graph, node).op("aten::dim", sizes.inputsAt(0), type=ir.INT)
            ir.replace(node, [rank])


def _all_sizes(value: Any) -> Any:
    """The node `x.size()` that returns the list, or None."""
    node = value.node()
    if node.kind() == "aten::size" and node.inputsSize() == 1:
        return node
    return None


# For these operators one input is certainly a float tensor with axes, so a 0-d constant cannot
# promote its dtype.
FLOAT_WITH_AXES = frozenset(
    f"aten::{n}"
    for n in (
        "linear",
        "_convolution",
        "layer_norm",
        "batch_norm",
        "softmax",
        "group_norm",
        "embedding",
        "lstm",
    )
)
_WITH_SCALAR = frozenset(["aten::add", "aten::sub", "aten::mul", "aten::div"])


@lowering_pass("fold-scalar-tensors", touches=tuple(_WITH_SCALAR))
def fold_scalar_tensors(graph: Graph, context: Context) -> None:
    """Rewrite a 0-d constant beside a float tensor with axes to a number: `linear(x) * tensor(0.5)`
    is `linear(x) * 0.5`. The constant stays if the tensor may be 0-d or of integers, because its
    dtype then matters.
    """
    if not any(
        map(_second_is_constant, ir.nodes_of(graph, *context.present(*_WITH_SCALAR)))
    ):
        return
    certain: set[int] = set()
    for node in ir.walk(graph):
        kind = node.kind()
        if kind in FLOAT_WITH_AXES and float_weights(node):
            certain.update(value.unique() for value in node.outputs())
        elif kind in _WITH_SCALAR and node.inputsSize() >= 2:
            is_float_with_axes = node.inputsAt(0).unique() in certain
            _fold_second(graph, node, is_float_with_axes)
            certain.update(
                value.unique() for value in node.outputs() if is_float_with_axes
            )


def _second_is_constant(node: Node) -> bool:
    second = node.inputsAt(1)
    return bool(ir.is_constant(second) and second.type().kind() == "TensorType")


def float_weights(node: Node) -> bool:
    weights = [ir.constant(value) for value in node.inputs()]
    floats = [
        weight.is_floating_point()
        for weight in weights
        if isinstance(weight, torch.Tensor)
    ]
    return bool(floats) and all(floats)


def _fold_second(graph: Graph, node: Node, is_float_with_axes: bool) -> None:
    """A number that a trace wrapped in a tensor promotes like a number, so it can always be a
    number again, except a bool, which no operator accepts as a number.
    """
    if not _second_is_constant(node) or node.inputsAt(0).type().kind() != "TensorType":
        return
    second = node.inputsAt(1).toIValue()
    if (
        is_float_with_axes
        and isinstance(second, torch.Tensor)
        and second.dim() == 0
        and not second.is_complex()
    ):
        second = second.item()
    if is_float_with_axes and isinstance(second, bool):
        second = int(second)
    if not isinstance(second, torch.Tensor | bool):
        node.replaceInput(1, ir.insert_constant(graph, second, node))
