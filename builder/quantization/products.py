"""Operators whose operands are quantized to 8 bits: the indices of the operands, and the channel
axis of a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from builder.conversion import LayerNames
from builder.graph_types import Graph, Node
from builder.lowering import FP8_KIND, Containers, ir

FAKE = (
    "aten::fake_quantize_per_tensor_affine",
    "aten::fake_quantize_per_channel_affine",
    FP8_KIND,
)

Channels = Callable[[Any, torch.Tensor], "int | None"]
"""(node, weight) -> the axis that has one scale for each index; None: one scale for the whole
weight.
"""


def _outputs_first(node: Node, weight: torch.Tensor) -> int | None:
    return 0 if weight.dim() > 1 else None


def _channel_axis(node: Node, weight: torch.Tensor) -> int | None:
    """The channel axis of a convolution's weight.

    A transposed weight is (in, out / groups, ...): its channels are an axis only if there is one
    group.
    """
    groups = ir.constant(node.inputsAt(8))
    if not is_transposed(node):
        return 0
    return 1 if groups == 1 else None


def _columns(node: Node, weight: torch.Tensor) -> int | None:
    return 1 if weight.dim() == 2 else None


def is_transposed(node: Node) -> bool:
    """Whether the node is a transposed convolution."""
    return node.kind() == "aten::_convolution" and bool(ir.constant(node.inputsAt(6)))


PRODUCTS: dict[str, tuple[int, int, Channels]] = {
    "aten::_convolution": (0, 1, _channel_axis),
    **dict.fromkeys(
        ("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::linear"),
        (0, 1, _outputs_first),
    ),
    **dict.fromkeys(("aten::matmul", "aten::mm", "aten::bmm"), (0, 1, _columns)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), (1, 2, _columns)),
}
"""For each operator: the indices of the two operands, and the channel axis of the second if it is a
weight.

Other products (recurrent cells, einsum, cdist) have no 8-bit kernels in TensorRT, or are inside
loops.
"""


@dataclass(frozen=True)
class Operand:
    """The operand `index` of a node, to be rounded. If it is static, `weight` is its value, and
    `axis` that of its channels.
    """

    index: int
    weight: torch.Tensor | None = None
    axis: int | None = None


@dataclass(frozen=True)
class Product:
    """A node of the graph that computes a product; `name` is the name of its layer."""

    node: Any
    name: str
    operands: tuple[Operand, ...]

    @property
    def weight(self) -> torch.Tensor | None:
        """The static operand that is not fake-quantized, or None."""
        for operand in self.operands:
            if operand.weight is not None:
                return operand.weight
        return None


def products(
    graph: Graph, containers: Containers = MappingProxyType({})
) -> list[Product]:
    """Every product of the graph in program order, with those of its operands that are not
    fake-quantized.
    """
    names = LayerNames(containers)
    graph_products = []
    for node in ir.walk(graph):
        if node.kind() in PRODUCTS:
            graph_products.append(
                Product(node, names.stem(node), tuple(_operands(node)))
            )
    return graph_products


def _operands(node: Node) -> Any:
    left, right, channels = PRODUCTS[node.kind()]
    for index in (left, right):
        value = node.inputsAt(index)
        weight = ir.constant(value)
        if value.node().kind() in FAKE:
            continue
        if not isinstance(weight, torch.Tensor):
            yield Operand(index)
        elif index == right:
            yield Operand(index, weight, channels(node, weight))
        else:
            yield Operand(index, weight)
