"""`run`: a network's outputs for given inputs, layer by layer on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

import builder.reference.layers  # noqa: F401  (registers the evaluations)
from builder.errors import NetworkEvaluationError, TrtBuildError
from builder.reference.dtypes import torch_dtype
from builder.reference.network import Node, ordered, read_layers
from builder.reference.registry import EVALUATORS

Values = dict[Any, Tensor]


@torch.no_grad()
def run(conversion_or_network: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Evaluate a network (or the `.network` of a conversion) on the CPU.

    `inputs` are CPU tensors in the order of the network's inputs; int64 and float64 are narrowed where the network has
    int32 or float32. Returns the outputs in the network's order, of the network's dtypes. Raises
    NetworkEvaluationError, naming the layer, for a layer that has no evaluation, for a value whose dtype or shape is
    not what TensorRT says of its tensor, and for what a layer's documentation forbids (an index out of bounds).
    """
    network = getattr(conversion_or_network, "network", conversion_or_network)
    nodes = read_layers(network)
    values = _bind(network, inputs)
    wanted = [network.get_output(i) for i in range(network.num_outputs)]
    evaluate(ordered(nodes), values, wanted)
    return [values[tensor].clone(memory_format=torch.contiguous_format) for tensor in wanted]


@torch.no_grad()
def inspect(conversion_or_network: Any, inputs: Sequence[Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """The values of the named tensors of a network, intermediate ones too; names that it does not have are left out.

    Inputs and errors as for `run`.
    """
    network = getattr(conversion_or_network, "network", conversion_or_network)
    nodes = read_layers(network)
    values = _bind(network, inputs)
    wanted = {tensor.name: tensor for node in nodes for tensor in node.outputs if tensor.name in names}
    evaluate(ordered(nodes), values, list(wanted.values()))
    return {name: values[tensor] for name, tensor in wanted.items() if tensor in values}


def evaluate(steps: Sequence[Node], values: Values, wanted: Sequence[Any]) -> None:
    """Put the outputs of the steps into `values`, in turn; a value goes after its last use unless it is wanted."""
    last_use = {tensor: i for i, step in enumerate(steps) for tensor in (*step.outputs, *step.inputs)}
    kept = set(wanted)
    for i, step in enumerate(steps):
        values.update(zip(step.outputs, evaluate_node(step, values), strict=True))
        for tensor in (*step.outputs, *step.inputs):
            if last_use[tensor] == i and tensor not in kept:
                values.pop(tensor, None)


def evaluate_node(node: Node, values: Values) -> tuple[Tensor, ...]:
    """One layer's outputs, checked against what TensorRT says of them."""
    evaluator = EVALUATORS.get(node.kind)
    if evaluator is None:
        raise node.error(f"the reference has no evaluation of {node.kind} layers")
    operands = [None if tensor is None else values[tensor] for tensor in node.inputs]
    try:
        result = evaluator(node.layer, *operands)
    except TrtBuildError:
        raise
    except Exception as error:
        raise node.error(f"cannot be evaluated: {error}") from error
    results = result if isinstance(result, tuple) else (result,)
    _check(node, results)
    return results


def _check(node: Node, results: tuple[Tensor, ...]) -> None:
    """Raise unless each output has the dtype and, but for -1, the lengths that TensorRT gives."""
    try:
        expected = node.expected
    except (KeyError, ValueError) as error:
        raise node.error(f"TensorRT has no usable shape or dtype for an output: {error}") from error
    for i, (value, (dtype, shape)) in enumerate(zip(results, expected, strict=True)):
        if value.dtype != dtype or not _fits(value.shape, shape):
            raise node.error(f"output {i} is {value.dtype} {tuple(value.shape)} here; TensorRT says {dtype} {shape}")


def _fits(lengths: Sequence[int], shape: Sequence[int]) -> bool:
    return len(lengths) == len(shape) and all(n in (-1, m) for m, n in zip(lengths, shape, strict=True))


def _bind(network: Any, inputs: Sequence[Tensor]) -> Values:
    """The network's inputs with their values; raises NetworkEvaluationError where one does not fit."""
    if len(inputs) != network.num_inputs:
        raise NetworkEvaluationError(f"the network has {network.num_inputs} inputs, {len(inputs)} were given")
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    return {tensor: _input(tensor, value) for tensor, value in zip(tensors, inputs, strict=True)}


NARROWED = {(torch.int64, torch.int32), (torch.float64, torch.float32)}


def _input(tensor: Any, value: Tensor) -> Tensor:
    dtype = torch_dtype(tensor.dtype)
    if not _fits(value.shape, tuple(tensor.shape)):
        raise NetworkEvaluationError(f"input {tensor.name!r} is {tuple(value.shape)}, the network's {tensor.shape}")
    if value.dtype != dtype and (value.dtype, dtype) not in NARROWED:
        raise NetworkEvaluationError(f"input {tensor.name!r} is {value.dtype}, the network's {dtype}")
    narrowed = value.detach().to(dtype)
    if not value.is_floating_point() and not torch.equal(narrowed.to(value.dtype), value):
        raise NetworkEvaluationError(f"input {tensor.name!r} has values beyond {dtype}, which the network takes")
    return narrowed
