"""A batch normalisation taken into the weights of the convolution before it, before the weights are rounded.

Behind quantised weights conversion cannot do it any more, and a scale of its own between a convolution and its
activation is work that int8 was meant to save.
"""

from __future__ import annotations

from typing import Any

from builder.conversion.folding import channel_scale
from builder.lowering import ir

CONVOLUTIONS = ("aten::_convolution", "aten::conv1d", "aten::conv2d", "aten::conv3d")


def fold(graph: Any) -> None:
    """Fold every normalisation by running statistics whose input nothing else reads; all parameters must be static."""
    for node in ir.nodes_of(graph, "aten::batch_norm"):
        convolution = node.inputsAt(0).node()
        if convolution.kind() in CONVOLUTIONS and len(node.inputsAt(0).uses()) == 1 and not ir.in_fallback(node):
            _fold(graph, convolution, node)


def _fold(graph: Any, convolution: Any, node: Any) -> None:
    kernel, bias, *statistics = (ir.constant(v) for v in (*ir.inputs(convolution)[1:3], *ir.inputs(node)[1:5]))
    training, eps = (ir.constant(node.inputsAt(at)) for at in (5, 7))
    transposed = convolution.kind() == CONVOLUTIONS[0] and ir.constant(convolution.inputsAt(6))
    known = all(ir.is_constant(v) for v in (*ir.inputs(convolution)[1:3], *ir.inputs(node)[1:5]))
    if not known or kernel is None or statistics[2] is None or statistics[3] is None or training or transposed:
        return
    scale, shift = channel_scale(*statistics, eps=eps)
    weight = kernel.double() * scale.reshape(-1, *[1] * (kernel.dim() - 1))
    offset = shift if bias is None else shift + bias.double() * scale
    for place, value in ((1, weight), (2, offset)):
        convolution.replaceInput(place, ir.insert_constant(graph, value.to(kernel.dtype), convolution))
    node.output().replaceAllUsesWith(convolution.output())
    node.destroy()
