"""The layers of a network and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterator

from builder.engine.interfaces import ILayer, INetworkDefinition, ITensor
from builder.engine.network import layer_type, typed_layers

Input = tuple[ILayer, int, ITensor]
"""A layer, the index of one of its inputs, and the tensor that it reads there."""


class LayerGraph:
    """The layers in the network's order, and the layer that computes each tensor.

    Tensors are compared by identity, so the layers stay referenced: see `reference.node.Values`.
    """

    def __init__(self, network: INetworkDefinition) -> None:
        self.layers: list[ILayer] = list(typed_layers(network))
        self.sources: dict[ITensor, ILayer] = {
            layer.get_output(index): layer
            for layer in self.layers
            for index in range(layer.num_outputs)
        }

    def inputs(self) -> Iterator[Input]:
        """Each input of each layer that is set."""
        for layer in self.layers:
            yield from inputs_of(layer)

    def source_of(self, tensor: ITensor, passed: frozenset[str]) -> ILayer | None:
        """The layer that computes the tensor, before layers of the kinds `passed`. None for inputs
        of the network.
        """
        layer = self.sources.get(tensor)
        if layer is None or kind(layer) not in passed:
            return layer
        return self.source_of(layer.get_input(0), passed)


def inputs_of(layer: ILayer) -> Iterator[Input]:
    """Each input of a layer that is set."""
    for index in range(layer.num_inputs):
        tensor = layer.get_input(index)
        if tensor is not None:
            yield layer, index, tensor


def kind(layer: ILayer) -> str:
    """The layer type; that of an element-wise layer has its operation."""
    name = layer_type(layer)
    return f"{name}.{layer.op.name}" if name == "ELEMENTWISE" else name
