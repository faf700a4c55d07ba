"""Reads an INetworkDefinition back: its layers, each typed as its own class."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from builder.engine import flavour, trt
from builder.reference.node import Node


def read_layers(network: Any) -> list[Node]:
    """Every layer of the network, in the network's order."""
    return [read_layer(network.get_layer(i)) for i in range(network.num_layers)]


def read_layer(layer: Any) -> Node:
    """One layer of a network as a node."""
    # Through the base class: IActivationLayer and IPoolingLayer hide the layer's type behind a
    # `type` of their own.
    kind = trt.ILayer.type.fget(layer).name
    if kind in _layer_classes():
        layer.__class__ = _layer_classes()[kind]
    inputs = tuple(layer.get_input(i) for i in range(layer.num_inputs))
    outputs = tuple(layer.get_output(i) for i in range(layer.num_outputs))
    return Node(layer, kind, inputs, outputs)


@lru_cache(maxsize=1)
def _layer_classes() -> dict[str, Any]:
    flavour.load()  # tells Polygraphy which flavour this process uses, before it imports one itself
    from polygraphy.backend.trt.util import get_layer_class_mapping

    return {
        layer_type.name: layer_class
        for layer_type, layer_class in get_layer_class_mapping().items()
    }
