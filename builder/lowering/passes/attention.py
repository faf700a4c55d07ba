"""Rewrite attention from separate operators to the form that TensorRT recognizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.scalars import FLOAT_WITH_AXES, float_weights

_PRODUCTS = ("aten::matmul", "aten::bmm")
_SCALES = ("aten::mul", "aten::div")
_MOVED = (
    "chunk expand flatten permute reshape select slice split squeeze t transpose unbind unflatten"
    " unsqueeze"
)
_MOVES = frozenset(f"aten::{n}" for n in _MOVED.split()) | {"prim::ListUnpack"}
_MASKS = {"aten::add": (0, 1), "aten::masked_fill": (0,), "aten::where": (1, 2)}
"""Operators that may occur between scores and softmax, with the inputs that may be the scores."""
_MIXES = frozenset(f"aten::{n}" for n in "add sub mul div".split())


@lowering_pass("scale-queries", touches=("aten::softmax",))
def scale_queries(graph: Graph, context: Context) -> None:
    """Rewrite `softmax((q @ k) / c)` to `softmax((q / c) @ k)`, with or without masks: TensorRT
    fuses attention if the scale precedes the product
    (https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/transformers-fused-attention.html).

    Its kernels for that compute in half precision; in full precision `scale-scores` does the
    opposite. Queries that may be integers are not changed, because dividing them changes their
    dtype. Queries of a layer in half precision are not changed either, because not every TensorRT
    version builds an engine for such attention.
    """
    for node in ir.nodes_of(graph, "aten::softmax"):
        scale = _scale(node.inputsAt(0))
        if scale is None or ir.in_fallback(node):
            continue
        product = scale.inputsAt(0).node()
        if not _is_real(product.inputsAt(0)):
            continue
        factor = _known_number(scale.inputsAt(1))
        if factor is not None:
            emit = Emit(graph, product, scale)
            scaled = emit.op(scale.kind(), product.inputsAt(0), factor)
            product.replaceInput(0, scaled)
            ir.bypass(scale)


@lowering_pass("scale-scores", touches=("aten::softmax",))
def scale_scores(graph: Graph, context: Context) -> None:
    """Rewrite `softmax((q / c) @ k)` to `softmax((q @ k) / c)`, with or without masks.

    If no kernel covers the whole attention, TensorRT fuses a scale after the product into the
    softmax kernel; a scale before the product costs extra time. Measured in tf32 on an H200:
    BERT-base 2 to 4 %, ViT-B 2 to 7 %. torch's own attention scales before the product.
    """
    for node in ir.nodes_of(graph, "aten::softmax"):
        product = _product(node.inputsAt(0))
        scale = None
        if product is not None:
            scale = _scale_of_operand(product.inputsAt(0))
        if scale is None or ir.in_fallback(product) or not _is_real(scale.inputsAt(0)):
            continue
        emit = Emit(graph, product, scale)
        scaled = emit.op(scale.kind(), product.output(), scale.inputsAt(1))
        scaled.node().moveAfter(product)
        product.output().replaceAllUsesAfterNodeWith(scaled.node(), scaled)
        ir.bypass(scale)


@lowering_pass("fold-query-scale", touches=("aten::softmax",))
def fold_query_scale(graph: Graph, context: Context) -> None:
    """Multiply the weights of the queries' linear layer by the constant that scales the queries:
    TensorRT otherwise runs the scale in a kernel of its own.

    It runs after `scale-queries`. The layer must have no other user, and half precision must
    represent the new weights as well as the old ones.
    """
    for node in ir.nodes_of(graph, "aten::softmax"):
        product = _product(node.inputsAt(0))
        if product is None or ir.in_fallback(product):
            continue
        scale = _scale_of_operand(product.inputsAt(0))
        if scale is not None:
            _fold(graph, scale)


def _fold(graph: Graph, scale: Node) -> None:
    """Multiply the weights of the layer by the factor and remove `scale`, if possible."""
    layer = _linear_of(scale.inputsAt(0))
    factor = _constant_factor(scale)
    if layer is None or factor is None:
        return
    weights = {at: ir.constant(layer.inputsAt(at)) for at in (1, 2)}
    scaled = {at: w * factor for at, w in weights.items() if w is not None}
    if not _suits_half(scaled[1]) or not all(map(_is_in_range, scaled.values())):
        return
    for at, weight in scaled.items():
        layer.replaceInput(at, ir.insert_constant(graph, weight, layer))
    ir.bypass(scale)


def _suits_half(weight: torch.Tensor) -> bool:
    """Whether the root mean square of the weights is at least the smallest normal number of half
    precision. Subnormal weights then add no error: rounding changes them by at most 2**-25, which
    is 2**-11 of that number, and 2**-11 is the relative error of normal numbers.
    """
    return float(weight.square().mean().sqrt()) >= _HALF.smallest_normal


def _is_in_range(weight: torch.Tensor) -> bool:
    return float(weight.abs().max()) <= _HALF.max


_HALF = torch.finfo(torch.float16)


def _linear_of(queries: Value) -> Any:
    """The linear layer with constant weights that computes the queries, through moves of their
    elements, if it has no other user; otherwise None.
    """
    layer = _before_moves(queries).node()
    if layer.kind() != "aten::linear" or len(layer.output().uses()) != 1:
        return None
    _, weight, bias = layer.inputs()
    has_constant_bias = ir.is_none(bias) or _is_real_constant(bias)
    if _is_real_constant(weight) and has_constant_bias and not ir.in_fallback(layer):
        return layer
    return None


def _is_real_constant(value: Value) -> bool:
    tensor = ir.constant(value)
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dtype in (torch.float32, torch.float64)
        and tensor.layout is torch.strided
        and tensor.numel() > 0
    )


def _constant_factor(scale: Node) -> float | None:
    """The finite number that the node multiplies by, or None if it is not known."""
    number = _known_number(scale.inputsAt(1))
    if number is None:
        return None
    factor = float(number)
    if scale.kind() == "aten::div":
        factor = 1 / factor if factor else math.inf
    return factor if math.isfinite(factor) else None


_ARITHMETIC: dict[str, Callable[..., float]] = {
    "aten::Float": float,
    "aten::div": operator.truediv,
    "aten::mul": operator.mul,
    "aten::pow": math.pow,
    "aten::sqrt": math.sqrt,
}
"""Operators on numbers that formulas of the scale use, such as `size ** -0.5`."""


def _known_number(value: Value) -> Any:
    """The number, or constant tensor without axes, that the value has in every run; None if it is
    not known. The size of a head is known only after its formula was written to the graph.
    """
    if not _is_number(value):
        return None
    if ir.is_constant(value):
        return ir.constant(value)
    node = value.node()
    compute = _ARITHMETIC.get(node.kind())
    if compute is None:
        return None
    operands = [_known_number(operand) for operand in node.inputs()]
    if any(operand is None for operand in operands):
        return None
    try:
        return compute(*operands)
    except (ArithmeticError, ValueError):
        return None


def _product(scores: Value, masks: int = 3) -> Any:
    """The matrix product whose result the softmax reads, through at most a few masks and branches,
    or None.
    """
    node = scores.node()
    if node.kind() in _PRODUCTS:
        return node
    if node.kind() == "prim::If":
        ends = ir.branch_ends(scores)
    else:
        ends = [node.inputsAt(at) for at in _MASKS.get(node.kind(), ())]
    if masks:
        for end in ends:
            product = _product(end, masks - 1)
            if product is not None:
                return product
    return None


def _scale_of_operand(operand: Value) -> Any:
    """The node that scales an operand of the product by a number, if it has no other user;
    otherwise None.
    """
    scale = _only_producer(_before_moves(operand), _SCALES)
    if scale is not None and _is_number(scale.inputsAt(1)):
        return scale
    return None


def _before_moves(value: Value) -> Value:
    """The value before operators that move its elements and are its only users."""
    while (
        len(value.uses()) == 1
        and value.node().kind() in _MOVES
        and value.node().outputsSize() == 1
    ):
        value = value.node().inputsAt(0)
    return value


def _is_number(factor: Value) -> bool:
    return (
        factor.type().kind() in ("FloatType", "IntType")
        or getattr(ir.constant(factor), "shape", None) == ()
    )


def _scale(scores: Value, masks: int = 3) -> Any:
    """The node that scales a product before softmax, through at most a few masks, or None."""
    scale = _only_producer(scores, _SCALES)
    if scale is not None and _only_producer(scale.inputsAt(0), _PRODUCTS) is not None:
        return scale
    node = scores.node()
    is_plain_sum = node.kind() != "aten::add" or (
        node.inputsSize() == 3 and ir.constant(node.inputsAt(2)) == 1
    )
    if not masks or not is_plain_sum or ir.in_fallback(node):
        return None
    for at in _MASKS.get(node.kind(), ()):
        scale = _scale(node.inputsAt(at), masks - 1)
        if scale is not None:
            return scale
    return None


def _only_producer(value: Value, kinds: tuple[str, ...]) -> Any:
    """The node of one of these kinds that computes the value, if it has no other user; otherwise
    None. A rounded quotient does not count.
    """
    node = value.node()
    is_only_maker = (
        node.kind() in kinds and len(value.uses()) == 1 and node.inputsSize() == 2
    )
    return node if is_only_maker else None


def _is_real(value: Value) -> bool:
    """Whether the value is certainly floating-point and not in half precision: it comes from a
    layer with such weights, possibly through operators that move or combine elements.
    """
    node = value.node()
    while node.kind() in _MOVES:
        node = node.inputsAt(0).node()
    if node.kind() in _MIXES:
        return any(_is_real(side) for side in list(node.inputs())[:2])
    if node.kind() == "aten::cat":
        return any(_is_real(part) for part in ir.list_items(node.inputsAt(0)) or ())
    weights = (ir.constant(weight) for weight in node.inputs())
    half = any(
        isinstance(weight, torch.Tensor) and weight.dtype == torch.float16
        for weight in weights
    )
    return node.kind() in FLOAT_WITH_AXES and float_weights(node) and not half
