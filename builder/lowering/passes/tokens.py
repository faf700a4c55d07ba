"""Compute the layers of a vision transformer on a matrix with one row for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.amounts import Amount
from builder.lowering.passes.dtypes import bottom_up, input_facts, input_shapes
from builder.lowering.passes.lengths import Lengths
from builder.lowering.passes.widths import is_layer


@lowering_pass(
    "flatten-tokens",
    touches=("aten::layer_norm",),
    enabled=lambda context: context.weakly_typed,
)
def flatten_tokens(graph: Graph, context: Context) -> None:
    """Compute layer_norm, linear and elementwise operators on `[batch * tokens, width]` instead of
    `[batch, tokens, width]`, if the number of tokens is static and all convolutions come before the
    first layer_norm.

    It runs for TensorRT 8.6 only, which computes a residual sum and its layer_norm in one kernel.
    After a convolution, 8.6 moves reshapes between their parts and needs two or three kernels.
    Measured on an H200 (three blocks of ViT-B, fp16, batch 32): 62 us for both of a block, and
    34 us in this form. The whole ViT-B takes 3.27 instead of 3.57 ms. For BERT-base it makes no
    difference. Convolutions between such layers have not been measured.
    """
    if not _begins_with_convolutions(graph):
        return
    lengths = Lengths(input_facts(graph, context), input_shapes(graph, context))
    tokens = _Tokens(graph, lengths)
    top = graph.return_node().owningBlock()
    for node in bottom_up(graph):
        operands: list[Value] = []
        if node.owningBlock() == top and not ir.in_fallback(node):
            tokens.read_matrix(node)
            operands = _operands(tokens, node)
        if operands:
            tokens.compute_flat(node, operands)
        else:
            lengths.learn(node)


def _begins_with_convolutions(graph: Graph) -> bool:
    """Whether the graph has convolutions, all of them before its first layer_norm."""
    kinds = [node.kind() for node in ir.walk(graph)]
    first = kinds.index(_NORM) if _NORM in kinds else 0
    return _CONVOLUTION in kinds[:first] and _CONVOLUTION not in kinds[first:]


_CONVOLUTION, _NORM = "aten::_convolution", "aten::layer_norm"


class _Tokens:
    """The tensors of shape [batch, tokens, width] whose elements are known as a matrix."""

    def __init__(self, graph: Graph, lengths: Lengths) -> None:
        self.graph = graph
        self.lengths = lengths
        self.constants = ir.Constants(graph)
        self.rows = dict[int, Value]()
        """The matrix of each tensor, by `Value.unique`."""
        self.sizes = dict[tuple[Amount, ...], list[Value | int]]()
        """Batch and tokens as items of a list, by their symbolic sizes."""

    def leading(self, value: Value) -> tuple[Amount, ...] | None:
        """Batch and tokens of a tensor of rank 3, of which only the batch may be symbolic; None for
        any other tensor.
        """
        shape = self.lengths.shape(value)
        if shape is None or len(shape) != 3 or shape[1].names or shape[2].names:
            return None
        return (shape[0], shape[1])

    def is_flat(self, value: Value) -> bool:
        """Whether the matrix of the tensor is known."""
        return value.unique() in self.rows

    def read_matrix(self, node: Node) -> None:
        """Let a reshape read the matrix, which has the same elements in the same order."""
        if node.kind() == "aten::reshape" and self.is_flat(node.inputsAt(0)):
            node.replaceInput(0, self.rows[node.inputsAt(0).unique()])

    def compute_flat(self, node: Node, operands: Sequence[Value]) -> None:
        """Replace the node by the same operator on the matrices of the operands, and a reshape."""
        emit = Emit(self.graph, node, shared=self.constants)
        sizes = self._items(operands[0], emit)
        inputs = [
            self._flatten(value, emit) if value in operands else value
            for value in node.inputs()
        ]
        matrix = emit.op(node.kind(), *inputs)
        self.lengths.learn(matrix.node())
        result = self._reshape(matrix, [*sizes, self._width(matrix)], emit)
        self.rows[result.unique()] = matrix
        ir.replace(node, [result])

    def _flatten(self, value: Value, emit: Emit) -> Value:
        if not self.is_flat(value):
            source = value.node().inputsAt(0) if _is_reshape(value) else value
            matrix = self._reshape(source, [-1, self._width(value)], emit)
            self.rows[value.unique()] = matrix
        return self.rows[value.unique()]

    def _items(self, value: Value, emit: Emit) -> list[Value | int]:
        """Batch and tokens of the tensor as items of a list."""
        leading = self.leading(value)
        assert leading is not None
        if leading not in self.sizes:
            batch, length = leading
            first: Value | int = batch.number
            if batch.names:
                first = emit.op("aten::size", value, 0, type=ir.INT)
            self.sizes[leading] = [first, length.number]
        return self.sizes[leading]

    def _width(self, value: Value) -> int:
        shape = self.lengths.shape(value)
        assert shape
        return shape[-1].number

    def _reshape(self, value: Value, sizes: Sequence[Value | int], emit: Emit) -> Value:
        result = emit.op("aten::reshape", value, emit.ints(sizes))
        self.lengths.learn(result.node())
        return result


def _is_reshape(value: Value) -> bool:
    return value.node().kind() == "aten::reshape" and not ir.in_fallback(value.node())


def _operands(tokens: _Tokens, node: Node) -> list[Value]:
    """The operands of the node to replace by their matrices, if any."""
    rule = _RULES.get(node.kind())
    return [] if rule is None else rule(tokens, node)


def _normalized(tokens: _Tokens, node: Node) -> list[Value]:
    axes = ir.int_list(node.inputsAt(1))
    if axes is None or len(axes) != 1 or tokens.leading(node.inputsAt(0)) is None:
        return []
    return [node.inputsAt(0)]


def _layer(tokens: _Tokens, node: Node) -> list[Value]:
    """A linear layer of a known matrix, or of a reshape to such tokens, as after attention"""
    operand = node.inputsAt(0)
    is_token_reshape = _is_reshape(operand) and tokens.leading(operand) in tokens.sizes
    if is_layer(node) and (tokens.is_flat(operand) or is_token_reshape):
        return [operand]
    return []


def _unary(tokens: _Tokens, node: Node) -> list[Value]:
    return [node.inputsAt(0)] if tokens.is_flat(node.inputsAt(0)) else []


def _binary(tokens: _Tokens, node: Node) -> list[Value]:
    """Tensors of one shape, of which a matrix is known; the other operand may be a number or a
    vector
    """
    sides = [
        side
        for side in (node.inputsAt(0), node.inputsAt(1))
        if side.type().kind() == "TensorType" and not _is_vector(side)
    ]
    shapes = [tokens.lengths.shape(side) for side in sides]
    is_flat = any(tokens.is_flat(side) for side in sides)
    if is_flat and all(shape == shapes[0] for shape in shapes):
        return sides
    return []


def _is_vector(value: Value) -> bool:
    tensor = ir.constant(value)
    return isinstance(tensor, torch.Tensor) and tensor.dim() <= 1


_RULES: dict[str, Callable[[_Tokens, Node], list[Value]]] = {
    "aten::layer_norm": _normalized,
    "aten::linear": _layer,
    **dict.fromkeys(
        ("aten::gelu", "aten::relu", "aten::sigmoid", "aten::tanh"), _unary
    ),
    **dict.fromkeys(("aten::add", "aten::sub", "aten::mul", "aten::div"), _binary),
}
"""By operator: the function that returns its `_operands`."""
