"""`run`: evaluate a network for given inputs, layer by layer on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import builder.reference.layers  # noqa: F401  (registers the evaluations)
from builder.engine import INetworkDefinition, ITensor
from builder.errors import NetworkEvaluationError
from builder.reference.dtypes import torch_dtype
from builder.reference.node import Values, fits, read_layers
from builder.reference.region import Region

# A TensorRT without int64 and plain int8 has int32 at the endpoint; none has a float64 input.
NARROWED = {
    (torch.int64, torch.int32),
    (torch.int8, torch.int32),
    (torch.float64, torch.float32),
}


@torch.no_grad()
def run(conversion_or_network: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Evaluate a network (or the `.network` of a conversion) on the CPU.

    `inputs` are CPU tensors in the order of the network's inputs. int64 and float64 are converted
    if the network has int32 or float32. Returns the outputs in the network's order, with the
    network's dtypes.

    Raises NetworkEvaluationError, with the layer's name, for a layer without an evaluation. Also
    raises it for a value whose dtype or shape differs from TensorRT's, and for a violation of a
    layer's documentation (a slice out of bounds).
    """
    network: INetworkDefinition = getattr(
        conversion_or_network, "network", conversion_or_network
    )
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    region = Region(read_layers(network), outputs)
    values = _bind(network, inputs)
    region.evaluate(values)
    return [
        values[tensor].clone(memory_format=torch.contiguous_format)
        for tensor in outputs
    ]


@torch.no_grad()
def inspect(
    conversion_or_network: Any,
    inputs: Sequence[Tensor],
    names: Collection[str],
    *,
    partial: bool = False,
    replaced: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The values of the named tensors of a network, including intermediate ones.

    Names that the network lacks are omitted, and so are tensors inside a loop or a conditional.
    Inputs and errors are those of `run`. With `partial`, a layer that cannot be evaluated is not an
    error: the values up to it are returned. Layers read the `replaced` values, by name, in place
    of the evaluated ones.
    """
    network = getattr(conversion_or_network, "network", conversion_or_network)
    nodes = read_layers(network)
    watched = {
        tensor.name: tensor
        for node in nodes
        for tensor in node.outputs
        if tensor.name in names
    }
    values = _bind(network, inputs)
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    region = Region(nodes, outputs, watched.values())
    evaluated: dict[str, Tensor] = {}
    try:
        region.evaluate(values, replaced or {}, evaluated)
    except NetworkEvaluationError:
        if not partial:
            raise
    present = {
        name: values[tensor] for name, tensor in watched.items() if tensor in values
    }
    return present | {name: evaluated[name] for name in present if name in evaluated}


def _bind(network: INetworkDefinition, inputs: Sequence[Tensor]) -> Values:
    """The values of the network's inputs. Raises NetworkEvaluationError if one has an incompatible
    dtype or shape.
    """
    if len(inputs) != network.num_inputs:
        raise NetworkEvaluationError(
            f"the network has {network.num_inputs} inputs, {len(inputs)} were given"
        )
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    return {
        tensor: _input(tensor, value)
        for tensor, value in zip(tensors, inputs, strict=True)
    }


def _input(tensor: ITensor, value: Tensor) -> Tensor:
    dtype = torch_dtype(tensor.dtype)
    if not fits(value.shape, tuple(tensor.shape)):
        raise NetworkEvaluationError(
            f"input {tensor.name!r} is {tuple(value.shape)}, the network's {tensor.shape}"
        )
    if value.dtype != dtype and (value.dtype, dtype) not in NARROWED:
        raise NetworkEvaluationError(
            f"input {tensor.name!r} is {value.dtype}, the network's {dtype}"
        )
    narrowed = value.detach().to(dtype)
    if not value.is_floating_point() and not torch.equal(
        narrowed.to(value.dtype), value
    ):
        raise NetworkEvaluationError(
            f"input {tensor.name!r} has values beyond {dtype}, which the network takes"
        )
    return narrowed
