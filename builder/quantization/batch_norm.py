"""Fold batch normalization into the weights of the preceding convolution, before the weights are
quantized.

Conversion cannot fold it into quantized weights. A separate scale between a convolution and its
activation takes time that int8 should save.
"""

from __future__ import annotations

from builder.conversion import channel_scale, reads_alone, scaled_weight
from builder.graph_types import Graph, Node
from builder.lowering import ir


def fold(graph: Graph) -> None:
    """Fold every normalization with running statistics and static parameters, if nothing else reads
    its input.
    """
    for node in ir.nodes_of(graph, "aten::batch_norm"):
        if reads_alone(node) and not ir.in_fallback(node):
            _fold(graph, node.inputsAt(0).node(), node)


def _fold(graph: Graph, convolution: Node, node: Node) -> None:
    operands = [*ir.inputs(convolution)[1:3], *ir.inputs(node)[1:5]]
    kernel, bias, gamma, beta, mean, variance = (
        ir.constant(value) for value in operands
    )
    training = ir.constant(node.inputsAt(5))
    eps = ir.constant(node.inputsAt(7))
    are_constant = all(ir.is_constant(value) for value in operands)
    if (
        not are_constant
        or training
        or kernel is None
        or mean is None
        or variance is None
    ):
        return
    scale, shift = channel_scale(gamma, beta, mean, variance, eps=eps)
    weight = scaled_weight(kernel, scale, kernel.dtype)
    offset = shift
    if bias is not None:
        offset = shift + bias.double() * scale
    for index, value in ((1, weight), (2, offset.to(kernel.dtype))):
        convolution.replaceInput(index, ir.insert_constant(graph, value, convolution))
    node.output().replaceAllUsesWith(convolution.output())
    node.destroy()
