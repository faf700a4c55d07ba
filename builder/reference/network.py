"""Reads an INetworkDefinition back: its layers as nodes, in an order in which they can be evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch

from builder.engine.flavour import load, trt
from builder.errors import NetworkEvaluationError
from builder.reference.dtypes import torch_dtype


@dataclass(frozen=True, eq=False)
class Node:
    """One layer: typed as its own class, its LayerType's name, its tensors (None where an optional input is missing).

    Tensors are compared by identity: pybind11 gives one Python object for one ITensor as long as somebody holds it,
    and the nodes hold all of them.
    """

    layer: Any
    kind: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @cached_property
    def expected(self) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
        """dtype and shape (-1 for any length) that TensorRT gives to each output."""
        return tuple((torch_dtype(tensor.dtype), tuple(tensor.shape)) for tensor in self.outputs)

    @property
    def where(self) -> str:
        """The layer's name, type and metadata, which is where its source line stands."""
        metadata = getattr(self.layer, "metadata", "")
        return f"layer {self.layer.name!r} ({self.kind})" + (f", {metadata}" if metadata else "")

    def error(self, message: str) -> NetworkEvaluationError:
        return NetworkEvaluationError(message, where=self.where)


@lru_cache(maxsize=1)
def _layer_classes() -> dict[str, Any]:
    load()  # tells Polygraphy which flavour this process uses, before it imports one itself
    from polygraphy.backend.trt.util import get_layer_class_mapping  # type: ignore[import-untyped]

    return {layer_type.name: layer_class for layer_type, layer_class in get_layer_class_mapping().items()}


def read_layer(layer: Any) -> Node:
    """One layer of a network as a node."""
    # Through the base class: IActivationLayer and IPoolingLayer hide the layer's type behind a `type` of their own.
    kind = trt.ILayer.type.fget(layer).name
    if kind in _layer_classes():
        layer.__class__ = _layer_classes()[kind]
    inputs = tuple(layer.get_input(i) for i in range(layer.num_inputs))
    outputs = tuple(layer.get_output(i) for i in range(layer.num_outputs))
    return Node(layer, kind, inputs, outputs)


def read_layers(network: Any) -> list[Node]:
    """Every layer of the network, in the network's order."""
    return [read_layer(network.get_layer(i)) for i in range(network.num_layers)]


def ordered(steps: Iterable[Any]) -> list[Any]:
    """The steps in an order in which each one's inputs come first; the given order breaks ties.

    A step has `inputs` and `outputs`. Raises NetworkEvaluationError where some wait for one another.
    """
    pending = list(steps)
    maker = {tensor: step for step in pending for tensor in step.outputs}
    done: dict[Any, None] = {}
    for first in pending:
        path = [first]  # each waits for the next; a list and not recursion, as networks are thousands of layers deep
        on_path = {first}
        while path:
            waits_for = next((maker[t] for t in path[-1].inputs if t in maker and maker[t] not in done), None)
            if waits_for is None or path[-1] in done:
                on_path.discard(path[-1])
                done[path.pop()] = None
            elif waits_for in on_path:
                raise waits_for.error("the layer's value depends on itself, outside of any loop")
            else:
                path.append(waits_for)
                on_path.add(waits_for)
    return list(done)
