"""Residual additions that an 8-bit convolution absorbs.

TensorRT fuses a convolution with the addition after it. It then computes both in one int8 kernel,
if the other operand of the addition is also int8. "Quantize the residual input in skip connections"
(TensorRT Developer Guide, Working with Quantized Types, "Q/DQ Placement Recommendations"). With a
float operand the kernel has a float result, and each block of the network pays for conversions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from builder.conversion import LayerNames
from builder.graph_types import Graph, Node, Value
from builder.lowering import Containers, ir
from builder.quantization.products import FAKE, Operand, Product
from builder.reachable import reachable

CONVOLUTIONS = frozenset(
    (
        "aten::_convolution",
        "aten::conv1d",
        "aten::conv2d",
        "aten::conv3d",
        "aten::convolution",
    )
)
"""The products that TensorRT fuses with an addition."""

COMMUTING = frozenset(
    f"aten::{name}"
    for name in (
        "relu relu6 hardtanh dropout contiguous flatten reshape view permute"
        " transpose max_pool1d max_pool2d max_pool3d"
    ).split()
)
"""Operators that TensorRT computes in int8 between a quantized result and its reader, or fuses."""


@dataclass(frozen=True)
class Addition:
    """An addition of a convolution's result and another value, the residual.

    `product` names the addition; the residual is its only operand. `related` are the indices of the
    products that read the sum, directly or through `COMMUTING`, or that read the residual.
    """

    product: Product
    related: frozenset[int]

    def pays(self, left_alone: Collection[int]) -> bool:
        """Whether a quantized product reads the sum or the residual. `left_alone` are the indices
        of products that are not quantized.
        """
        return not self.related <= set(left_alone)


def additions(
    graph: Graph,
    products: Sequence[Product],
    containers: Containers = MappingProxyType({}),
) -> list[Addition]:
    """The residual additions of the graph in program order. `products` are the graph's products."""
    names = LayerNames(containers)
    numbers = {
        product.node.output().debugName(): number
        for number, product in enumerate(products)
    }
    residual_additions = []
    for node in ir.nodes_of(graph, "aten::add"):
        index = _residual(node)
        if index is not None and not ir.in_fallback(node):
            readers = _readers(node.output(), numbers)
            related = readers | _direct(node.inputsAt(index), numbers)
            product = Product(node, names.stem(node), (Operand(index),))
            residual_additions.append(Addition(product, related))
    return residual_additions


def _residual(node: Node) -> int | None:
    """The index of the operand to quantize; None if no convolution can absorb the node."""
    operands = [node.inputsAt(0), node.inputsAt(1)]
    if (
        any(not _computed(value) for value in operands)
        or ir.constant(node.inputsAt(2)) != 1
    ):
        return None
    absorbed = [_absorbs(value) for value in operands]
    if not any(absorbed):
        return None
    index = 1 if absorbed[0] else 0
    if operands[index].node().kind() in FAKE:
        return None
    return index


def _computed(value: Value) -> bool:
    return value.type().kind() == "TensorType" and not ir.is_constant(value)


def _absorbs(value: Value) -> bool:
    return value.node().kind() in CONVOLUTIONS and len(value.uses()) == 1


def _readers(value: Value, numbers: dict[str, int]) -> frozenset[int]:
    """The products that read the value, through operators that keep 8 bits and other additions."""

    def outputs(value: Value) -> list[Value]:
        users = [use.user for use in value.uses()]
        return [
            user.output() for user in users if user.kind() in COMMUTING | {"aten::add"}
        ]

    values = reachable([value], outputs)
    return frozenset().union(*(_direct(value, numbers) for value in values))


def _direct(value: Value, numbers: dict[str, int]) -> frozenset[int]:
    readers = (use.user for use in value.uses() if use.user.outputsSize() == 1)
    names = (reader.output().debugName() for reader in readers)
    return frozenset(numbers[name] for name in names if name in numbers)
