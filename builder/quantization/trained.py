"""Find the fake quantization of a module that TensorRT can compute with int8 kernels."""

from __future__ import annotations

import torch

from builder.conversion import is_int8
from builder.graph_types import Node
from builder.lowering import FP8_KIND, ir
from builder.quantization.products import FAKE, PRODUCTS

PER_CHANNEL = "aten::fake_quantize_per_channel_affine"

RANGE = "the module rounds its operands to a range that is not int8's around 0"
CHANNELS = (
    "the module scales its activations channel by channel, and int8 has one"
    " scale for all of them"
)
AXIS = "the module scales its weights on another axis than that of the output channels"


def unfit(node: Node) -> str:
    """The reason why TensorRT computes a product of fake-quantized operands in float; empty if it
    does not.
    """
    left, right, _ = PRODUCTS[node.kind()]
    for index in (left, right):
        reason = _reason(node, node.inputsAt(index).node(), index == right)
        if reason:
            return reason
    return ""


def _reason(product: Node, fake: Node, second: bool) -> str:
    if fake.kind() not in FAKE or fake.kind() == FP8_KIND:
        return ""
    if not _in_range(fake):
        return RANGE
    if fake.kind() == PER_CHANNEL:
        return _wrong_axis(product, fake, second)
    return ""


def _in_range(fake: Node) -> bool:
    """Whether the fake quantization has the range of int8, by the same test as in conversion, for
    static zero points.
    """
    *_, low, high = map(ir.constant, ir.inputs(fake))
    zero = ir.constant(fake.inputsAt(2))
    if zero is None or low is None or high is None:
        return False
    zero = torch.as_tensor(zero)
    return is_int8(low - zero, high - zero)


def _wrong_axis(product: Node, fake: Node, second: bool) -> str:
    weight = ir.constant(fake.inputsAt(0))
    axis = ir.constant(fake.inputsAt(3))
    if not isinstance(weight, torch.Tensor):
        return CHANNELS
    channels = None
    if second:
        _, _, channels_of = PRODUCTS[product.kind()]
        channels = channels_of(product, weight)
    if axis is not None and axis % weight.dim() == channels:
        return ""
    return AXIS
