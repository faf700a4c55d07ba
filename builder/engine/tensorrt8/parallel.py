"""Sums of two products of matrices, after an attention.

Where attention and feed-forward layers are parallel, as in GPT-NeoX, Myelin computes
`attention @ a + hidden @ b` incorrectly in float32 and half, and does not build it while a size is
dynamic. It is incorrect with a sigmoid instead of the softmax, too, and if the feed-forward layers
read the result of the attention. `(x + attention @ a) + hidden @ b` is right, and so is a sum that
reads one product through a layer that Myelin does not compute. An average over windows of one
element is such a layer, and copies the product exactly (observed with 8.6.0 on an H200).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property

from builder.engine import capabilities
from builder.engine.flavor import trt
from builder.engine.interfaces import ILayer, INetworkDefinition, ITensor
from builder.engine.tensorrt8.graph import LayerGraph, inputs_of, kind

CASTS = frozenset({"CAST"})
SPREADS = frozenset({"CAST", "SHUFFLE"})
LOOPS = frozenset({"RECURRENCE", "LOOP_OUTPUT", "TRIP_LIMIT"})
HIGHEST_RANK = 3
Sizes = tuple[int, ...]


def separate_products(network: INetworkDefinition) -> None:
    """Let the sums of a network whose engine would be wrong read one product through a pooling
    layer.

    Networks with loops are left as they are, and so are products of more than three axes, and
    those with a dynamic last axis.
    """
    if capabilities.current().takes("ELEMENTWISE.PARALLEL_PRODUCTS", "FLOAT"):
        return
    graph = _Products(network)
    if any(kind(layer) in LOOPS for layer in graph.layers):
        return
    for layer in graph.layers:
        if kind(layer) == "ELEMENTWISE.SUM":
            index = graph.separable(layer)
            if index is not None:
                layer.set_input(index, _copied(network, layer, index))


class _Products(LayerGraph):
    """The sums and products of a network, and the layers on which each tensor depends."""

    def separable(self, total: ILayer) -> int | None:
        """The index of the operand of a sum that must be read through another layer: a product
        beside another one. None if the engine computes the sum correctly.
        """
        operands = [total.get_input(index) for index in (0, 1)]
        products = [index for index in (0, 1) if self._is_product(operands[index])]
        if len(products) == len(operands) and any(map(self._has_attention, operands)):
            return products[0]
        for index in products:
            if self._is_parallel(operands[index], operands[1 - index]):
                return index
        return None

    def _is_product(self, tensor: ITensor) -> bool:
        """Whether a tensor is a product of matrices, with or without a bias."""
        source, sizes = self.source_of(tensor, CASTS), tuple(tensor.shape)
        if source is None or len(sizes) not in (2, HIGHEST_RANK) or sizes[-1] < 1:
            return False
        if kind(source) != "ELEMENTWISE.SUM":
            return kind(source) == "MATRIX_MULTIPLY"
        first, second = (source.get_input(index) for index in (0, 1))
        return any(
            self._has_kind(product, CASTS, "MATRIX_MULTIPLY")
            and self._has_kind(bias, SPREADS, "CONSTANT")
            for product, bias in ((first, second), (second, first))
        )

    def _has_kind(self, tensor: ITensor, passed: frozenset[str], wanted: str) -> bool:
        source = self.source_of(tensor, passed)
        return source is not None and kind(source) == wanted

    def _has_attention(self, tensor: ITensor) -> bool:
        return bool(self._upstream[tensor] & self._attentions)

    def _is_parallel(self, product: ITensor, other: ITensor) -> bool:
        """Whether an attention is only in the product, and a product only in the other operand."""
        own, others = self._upstream[product], self._upstream[other]
        return bool(own & ~others & self._attentions) and bool(
            others & ~own & self._matrix_products
        )

    @cached_property
    def _attentions(self) -> int:
        """The products of two computed matrices, as a set of bits."""
        return self._bits(
            lambda layer: (
                not any(
                    self._has_kind(layer.get_input(index), SPREADS, "CONSTANT")
                    for index in (0, 1)
                )
            )
        )

    @cached_property
    def _matrix_products(self) -> int:
        return self._bits(lambda layer: True)

    def _bits(self, accepts: Callable[[ILayer], bool]) -> int:
        """The matrix products that `accepts` selects, as a set of bits."""
        return sum(
            1 << number
            for number, layer in enumerate(self.layers)
            if kind(layer) == "MATRIX_MULTIPLY" and accepts(layer)
        )

    @cached_property
    def _upstream(self) -> dict[ITensor, int]:
        """For each tensor the layers on which it depends, as a set of bits."""
        upstream = defaultdict[ITensor, int](int)
        for number, layer in enumerate(self.layers):
            bits = 1 << number
            for _, _, tensor in inputs_of(layer):
                bits |= upstream[tensor]
            for index in range(layer.num_outputs):
                upstream[layer.get_output(index)] = bits
        return upstream


def _copied(network: INetworkDefinition, total: ILayer, index: int) -> ITensor:
    """An operand of a sum, after a pooling over windows of one element."""
    tensor = total.get_input(index)
    sizes = tuple(tensor.shape)
    image = _reshaped(network, tensor, _as_image(sizes), f"{total.name}.image")
    pooling = network.add_pooling_nd(image, trt.PoolingType.AVERAGE, trt.Dims([1, 1]))
    pooling.name = f"{total.name}.pooled"
    return _reshaped(
        network, pooling.get_output(0), _original(sizes), f"{total.name}.copied"
    )


def _as_image(sizes: Sizes) -> Sizes:
    """The reshape to (N, 1, H, W): 0 keeps an axis, -1 is inferred."""
    return (0 if len(sizes) == HIGHEST_RANK else 1, 1, -1, sizes[-1])


def _original(sizes: Sizes) -> Sizes:
    """The reshape back to a tensor of these sizes."""
    return (*(0,) * (len(sizes) - 2), -1, sizes[-1])


def _reshaped(
    network: INetworkDefinition, tensor: ITensor, dims: Sizes, name: str
) -> ITensor:
    layer = network.add_shuffle(tensor)
    layer.reshape_dims = trt.Dims(dims)
    layer.name = name
    return layer.get_output(0)
