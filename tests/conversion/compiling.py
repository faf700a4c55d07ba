"""Which networks of the operator suite are compiled: those that have something new for TensorRT.

The reference evaluates every network. Compiling shows one more thing: that TensorRT takes each
layer with its settings, dtypes and ranks. A network whose layers and edges were all compiled
before in this process cannot show it again, so it is not compiled.

`TRT_BUILD_TEST_COMPILE=all` compiles every network, `TRT_BUILD_TEST_COMPILE=0` none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from builder.engine import flavor
from builder.reference.node import read_layers

COMPILED: set[Any] = set()
"""The features of the networks that this process has compiled."""

NO_SETTINGS = {"name", "metadata", "num_inputs", "num_outputs"}


def wanted(network: Any) -> bool:
    """Whether `network` is to be compiled; an engine that can be run always is."""
    chosen = os.environ.get("TRT_BUILD_TEST_COMPILE", "new")
    if chosen != "new" or flavor.name() == "tensorrt":
        return chosen != "0"
    return not features(network) <= COMPILED


def done(network: Any) -> None:
    """Remember that TensorRT has compiled `network`."""
    COMPILED.update(features(network))


@lru_cache(maxsize=1)
def features(network: Any) -> frozenset[Any]:
    """Each layer (settings and tensors) and each edge (both layers' types and the dtype)."""
    layers = read_layers(network)
    source = {output: layer.kind for layer in layers for output in layer.outputs}
    collected = set()
    for layer in layers:
        tensors = tuple(
            tuple(map(_tensor, side)) for side in (layer.inputs, layer.outputs)
        )
        collected.add((layer.kind, tuple(_settings(layer.layer)), tensors))
        for given in layer.inputs:
            if given is not None:
                collected.add(
                    (source.get(given, "input"), layer.kind, str(given.dtype))
                )
    return frozenset(collected)


def _tensor(tensor: Any) -> Any:
    if tensor is None:
        return None
    return (str(tensor.dtype), _sizes(tensor.shape), tensor.is_shape_tensor)


def _settings(layer: Any) -> Iterator[Any]:
    for name in _setting_names(type(layer)):
        try:
            yield name, _setting(getattr(layer, name))
        except (AttributeError, RuntimeError, TypeError, ValueError):
            yield name, None  # TensorRT has no value of it for a layer of this mode


@cache
def _setting_names(kind: type) -> tuple[str, ...]:
    names = (
        name
        for name in dir(kind)
        if not name.startswith("_") and name not in NO_SETTINGS
    )
    return tuple(name for name in names if isinstance(getattr(kind, name), property))


def _setting(value: Any) -> Any:
    kind = type(value).__name__
    if kind in ("ndarray", "Weights"):
        return (kind, str(value.dtype), value.size > 1)
    if kind.startswith("Dims"):
        return _sizes(value)
    return (
        kind
        if hasattr(value, "get_output") or hasattr(value, "add_input")
        else str(value)
    )


def _sizes(sizes: Any) -> Any:
    """Dynamic, 0, 1 or more: TensorRT chooses kernels by these; None for an unknown rank."""
    try:
        return tuple(min(size, 2) for size in sizes)
    except ValueError:
        return None
