"""The quantization result of each product of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from builder.conversion import quantizes
from builder.lowering import LoweredGraph, source_location
from builder.quantization import trained
from builder.quantization.products import products

OWN = "the module quantizes it itself"
TRANSPOSED = "TensorRT 8.6 builds no transposed convolution in 8 bits"
COMPUTED = "both operands are computed: TensorRT fuses attention in half, not in 8 bits"


@dataclass(frozen=True)
class Layer:
    """The quantization result of one product.

    `sqnr` in dB is that of rounding only this product. `reason` is why it is not quantized.
    """

    name: str
    operator: str
    where: str
    quantized: bool
    sqnr: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Quantized:
    """The graph with quantizing nodes, and the result for each of its products, in
    program order.
    """

    lowered: LoweredGraph
    layers: tuple[Layer, ...]
    additions: int = 0
    """The number of residual additions with an 8-bit operand."""

    @property
    def summary(self) -> str:
        """The result as text: `8 bits in 20 of 21 products; least SQNR 31.2 dB in
        head/aten::linear_0`.
        """
        quantized = [layer for layer in self.layers if layer.quantized]
        measured = [layer for layer in quantized if layer.sqnr is not None]
        noisiest = min(measured, key=lambda layer: layer.sqnr or 0.0, default=None)
        text = f"8 bits in {len(quantized)} of {len(self.layers)} products"
        if self.additions:
            text += f" and {self.additions} residual additions"
        if noisiest:
            text += f"; least SQNR {noisiest.sqnr:.1f} dB in {noisiest.name}"
        return text


def trained_scales(lowered: LoweredGraph) -> Quantized | None:
    """The unchanged graph with the results of its own fake quantization for its products; None if
    it has none.
    """
    if not quantizes(lowered.graph):
        return None
    layers = []
    for product in products(lowered.graph, lowered.containers):
        if product.operands:
            reason = "the module does not quantize its operands"
        else:
            reason = trained.unfit(product.node) or OWN
        location = source_location(product.node)
        layers.append(
            Layer(
                product.name, product.node.kind(), location, reason == OWN, None, reason
            )
        )
    return Quantized(lowered, tuple(layers))
