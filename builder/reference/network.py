"""Reads an INetworkDefinition back: its layers, each typed as its own class."""

from __future__ import annotations

from builder.engine import ILayer, INetworkDefinition, layer_type, typed_layers
from builder.reference.node import Node


def read_layers(network: INetworkDefinition) -> list[Node]:
    """Every layer of the network, in the network's order."""
    return [_read(layer) for layer in typed_layers(network)]


def _read(layer: ILayer) -> Node:
    inputs = tuple(layer.get_input(i) for i in range(layer.num_inputs))
    outputs = tuple(layer.get_output(i) for i in range(layer.num_outputs))
    return Node(layer, layer_type(layer), inputs, outputs)
