"""A new, empty network of the flavor in use, and the logger that keeps TensorRT's messages for
errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from builder.engine import capabilities, flavor
from builder.engine.flavor import trt
from builder.engine.interfaces import ILayer, INetworkDefinition
from builder.errors import EnvironmentProblem

MESSAGES: list[str] = []
"""TensorRT's messages at warning level or worse, newest last. Errors quote the last ones."""


@lru_cache(maxsize=1)
def logger() -> Any:
    """The logger of the process. TensorRT keeps only the first logger that it receives."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: object, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                del MESSAGES[:-50]
                MESSAGES.append(message)

    return Logger()


def new_network() -> tuple[Any, Any, list[str]]:
    """(trt.Builder, INetworkDefinition, TensorRT's messages). The network is strongly typed if the
    flavor supports it.
    """
    builder = trt.Builder(logger())
    if not builder:
        raise EnvironmentProblem(
            f"TensorRT's builder did not start: {MESSAGES[-1] if MESSAGES else 'no reason given'}",
            fix="use a host with a GPU and its driver, or --flavor tensorrt-rtx",
        )
    flag = trt.NetworkDefinitionCreationFlag
    kind = (
        flag.STRONGLY_TYPED
        if capabilities.current().strongly_typed
        else flag.EXPLICIT_BATCH
    )
    MESSAGES.clear()
    return builder, builder.create_network(1 << int(kind)), MESSAGES


def has_half(network: INetworkDefinition) -> bool:
    """Whether any tensor of the network is half: then the builder must be allowed to use half."""
    inputs = (network.get_input(index) for index in range(network.num_inputs))
    layers = (network.get_layer(index) for index in range(network.num_layers))
    outputs = (
        layer.get_output(index)
        for layer in layers
        for index in range(layer.num_outputs)
    )
    return any(
        tensor.dtype == trt.DataType.HALF
        for source in (inputs, outputs)
        for tensor in source
    )


def has_int8(network: INetworkDefinition) -> bool:
    """Whether any layer quantizes: then the builder must be allowed to use int8."""
    return any(
        layer_type(network.get_layer(index)) == "QUANTIZE"
        for index in range(network.num_layers)
    )


def layer_type(layer: ILayer) -> str:
    """The LayerType's name, through the base class, because IActivationLayer hides it with its own
    `type`.
    """
    return _layer_type_names()[int(trt.ILayer.type.__get__(layer))]


def typed_layers(network: INetworkDefinition) -> Iterator[Any]:
    """Each layer as an instance of its own class. INetworkDefinition returns the base class."""
    for layer in map(network.get_layer, range(network.num_layers)):
        layer.__class__ = _layer_classes().get(layer_type(layer), layer.__class__)
        yield layer


@lru_cache(maxsize=1)
def _layer_type_names() -> dict[int, str]:
    """LayerType names by value. Reading `.name` of an enumeration member is slow."""
    return {int(kind): kind.name for kind in trt.LayerType.__members__.values()}


@lru_cache(maxsize=1)
def _layer_classes() -> dict[str, Any]:
    flavor.load()  # Polygraphy imports the flavor that this process uses
    from polygraphy.backend.trt.util import get_layer_class_mapping

    return {
        kind.name: layer_class
        for kind, layer_class in get_layer_class_mapping().items()
    }


def layer_dtypes(network: INetworkDefinition) -> dict[str, Any]:
    """The dtypes in which the layers compute: that of the first output or, in a weakly typed
    network, the precision that is set.

    `runs` has [dtype, number of layers] in the network's order. `types` has, for each layer type,
    the number of its layers by dtype. Dtypes have TensorRT's names.
    """
    runs: list[list[Any]] = []
    types: dict[str, dict[str, int]] = {}
    for layer in map(network.get_layer, range(network.num_layers)):
        if not layer.num_outputs:
            continue
        chosen = getattr(layer, "precision_is_set", False)
        dtype = str((layer.precision if chosen else layer.get_output(0).dtype).name)
        if runs and runs[-1][0] == dtype:
            runs[-1][1] += 1
        else:
            runs.append([dtype, 1])
        counts = types.setdefault(layer_type(layer), {})
        counts[dtype] = counts.get(dtype, 0) + 1
    return {"runs": runs, "types": types}


def named_values(network: INetworkDefinition) -> Iterator[tuple[str, str]]:
    """(layer, value) for each floating-point tensor with the name of a value of the lowered graph,
    in the network's order. The layer is named as in keep_fp32.
    """
    for name, tensor in _named_layers(network):
        floating = tensor.dtype.name in ("FLOAT", "HALF", "BF16")
        if floating and tensor.name.startswith("%"):
            yield name, tensor.name.removeprefix("%")


def output_layers(network: INetworkDefinition) -> Iterator[str]:
    """The layer of each output of the network, if it is named as in keep_fp32."""
    for name, tensor in _named_layers(network):
        if tensor.is_network_output:
            yield name


def layers_by_tensor(network: INetworkDefinition) -> Iterator[tuple[str, str]]:
    """(tensor, layer) for the output tensors of each layer that is named as in keep_fp32."""
    for name, tensor in _named_layers(network):
        yield tensor.name, name


def _named_layers(network: INetworkDefinition) -> Iterator[tuple[str, Any]]:
    for layer in map(network.get_layer, range(network.num_layers)):
        name = re.sub(r"(_\d+)\.\d+$", r"\1", layer.name)
        for tensor in map(layer.get_output, range(layer.num_outputs)):
            if "::" in name:
                yield name, tensor
