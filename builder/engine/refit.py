"""Replace the weights of an existing plan, instead of a build (TensorRT's IRefitter).

A plan can be refitted if it was built with the option `refit`, and if the new network only differs
in weights. Two such networks have equal `structure`. Weights that TensorRT cannot replace, such as
shapes and indices, must be equal as well; `digests` compares them.
"""

from __future__ import annotations

import hashlib
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from builder.engine import flavor
from builder.engine.build import Plan, plan_facts, polygraphy_silenced
from builder.engine.flavor import trt
from builder.engine.interfaces import ILayer, INetworkDefinition, ITensor
from builder.engine.network import MESSAGES, layer_type, logger, typed_layers
from builder.engine.options import BuildOptions
from builder.errors import EngineError

ATTRIBUTES = {
    "KERNEL": "kernel",
    "BIAS": "bias",
    "SHIFT": "shift",
    "SCALE": "scale",
    "POWER": "power",
    "CONSTANT": "weights",
}
"""The attribute of a layer that holds the weights of each role (trt.WeightsRole). TensorRT can
replace all of them except the power of a scale layer.
"""
WEIGHTED = ("CONVOLUTION", "DECONVOLUTION", "SCALE", "CONSTANT")
"""The types of layers that hold weights."""

Digests = Mapping[str, str]


def possible(options: BuildOptions) -> bool:
    """Whether a plan with these options can be refitted on this machine, which needs a GPU."""
    return options.refit and not options.strip_plan and flavor.has_gpu()


def structure(network: INetworkDefinition) -> str:
    """SHA-256 over a network without its weights: each layer's type, attributes, inputs and
    outputs.

    Raises EngineError for a plugin layer, whose attributes cannot be read.
    """
    digest = hashlib.sha256()
    for tensor in map(network.get_input, range(network.num_inputs)):
        digest.update(_tensor(tensor).encode())
    for layer in typed_layers(network):
        kind = layer_type(layer)
        if kind.startswith("PLUGIN"):
            raise EngineError(
                f"the attributes of plugin layer {layer.name} cannot be read"
            )
        ends = [
            *map(_tensor, map(layer.get_input, range(layer.num_inputs))),
            *map(_tensor, map(layer.get_output, range(layer.num_outputs))),
        ]
        digest.update(repr((layer.name, kind, _attributes(layer), ends)).encode())
    for tensor in map(network.get_output, range(network.num_outputs)):
        digest.update(_tensor(tensor).encode())
    return digest.hexdigest()


def digests(network: INetworkDefinition) -> dict[str, str]:
    """SHA-256 of all weights of a network, by "layer name/ROLE".

    Weights with a dtype that numpy lacks (bfloat16, FP8) cannot be read back. Each gets a unique
    value, so they always differ.
    """
    return {
        f"{name}/{role}": _digest(weights) for name, role, weights in _weights(network)
    }


def refit(plan: Plan, conversion: Any, before: Digests, options: BuildOptions) -> Plan:
    """The plan with the weights of the conversion's network.

    `before` are the digests of the network that the plan was built from, which has the same
    structure. Raises EngineError if TensorRT cannot replace a changed weight, or refuses the new
    weights.
    """
    started = time.monotonic()
    new = {
        f"{name}/{role}": (name, role, weights)
        for name, role, weights in _weights(conversion.network)
    }
    after = digests(conversion.network)
    if after.keys() != before.keys():
        raise EngineError("the networks have different weights")
    changed = {label for label in new if after[label] != before[label]}
    MESSAGES.clear()
    with polygraphy_silenced():
        data = _refitted(plan.data, new, changed)
    return Plan(data, plan_facts(conversion, options, data, time.monotonic() - started))


def _refitted(
    data: bytes, new: Mapping[str, tuple[str, str, Any]], changed: set[str]
) -> bytes:
    runtime = trt.Runtime(logger())
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        raise EngineError(f"TensorRT refused the plan: {_warning()}")
    refitter = trt.Refitter(engine, logger())
    replaceable = {
        f"{name}/{role.name}" for name, role in zip(*refitter.get_all(), strict=True)
    }
    if fixed := sorted(changed - replaceable):
        raise EngineError(
            f"TensorRT cannot replace the weights of {', '.join(fixed[:3])}"
        )
    for label in sorted(replaceable & new.keys()):
        name, role, weights = new[label]
        if not refitter.set_weights(name, getattr(trt.WeightsRole, role), weights):
            raise EngineError(f"TensorRT refused the weights of {label}: {_warning()}")
    missing, _ = refitter.get_missing()
    if missing:
        raise EngineError(
            f"TensorRT needs the weights of {', '.join(sorted(missing)[:3])}"
        )
    if not refitter.refit_cuda_engine():
        raise EngineError(f"TensorRT could not replace the weights: {_warning()}")
    return bytes(engine.serialize())


def _warning() -> str:
    return "; ".join(MESSAGES[-3:]) or "no reason given"


def _weights(network: INetworkDefinition) -> Iterator[tuple[str, str, Any]]:
    """(layer name, role, weights) for all weights that are not empty. Weights are numpy arrays, or
    trt.Weights with a dtype that numpy lacks.
    """
    for layer in typed_layers(network):
        for role, attribute in ATTRIBUTES.items():
            if _holds_weights(layer, attribute):
                weights = getattr(layer, attribute)
                if weights.size:
                    yield layer.name, role, weights


def _holds_weights(layer: ILayer, attribute: str) -> bool:
    """Whether the layer's attribute holds weights. IResizeLayer and others have attributes with the
    same names that hold no weights.
    """
    return layer_type(layer) in WEIGHTED and hasattr(type(layer), attribute)


def _digest(weights: object) -> str:
    if not isinstance(weights, np.ndarray):
        return uuid.uuid4().hex
    described = f"{weights.dtype}{weights.shape}".encode()
    return hashlib.sha256(described + weights.tobytes()).hexdigest()


def _attributes(layer: ILayer) -> dict[str, Any]:
    """All attributes of the layer except weights, as plain values."""
    values = {}
    names = (
        name
        for name in dir(type(layer))
        if isinstance(getattr(type(layer), name), property)
    )
    for name in names:
        if name == "metadata" or (
            name in ATTRIBUTES.values() and _holds_weights(layer, name)
        ):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                values[name] = _as_data(getattr(layer, name))
            except (AttributeError, RuntimeError, TypeError, ValueError):
                values[name] = "unset"
    return values


def _as_data(value: Any) -> Any:
    """An attribute's value as plain data. Objects of TensorRT, such as a layer's loop, are replaced
    by their type, because their address differs between processes.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(type(value), "__members__"):
        return value.name
    try:
        return [_as_data(item) for item in value]
    except TypeError:
        return type(value).__name__


def _tensor(tensor: ITensor) -> str:
    if tensor is None:
        return "none"
    return f"{tensor.name}:{tensor.dtype.name}:{list(tensor.shape) if _ranked(tensor) else '?'};"


def _ranked(tensor: ITensor) -> bool:
    try:
        return len(tensor.shape) >= 0
    except ValueError:  # the rank depends on data
        return False
