"""The layers of a network, read back and ready for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from builder.engine import (
    MESSAGES,
    ILayer,
    INetworkDefinition,
    layer_type,
    tensorrt8,
    typed_layers,
)
from builder.errors import NetworkEvaluationError, TrtBuildError
from builder.reference.dtypes import torch_dtype
from builder.reference.registry import EVALUATORS

# The value of each tensor. Tensors are compared by identity: pybind11 returns the same Python
# object for an ITensor while a reference to it exists, and the nodes keep references to all.
Values = dict[Any, Tensor]


@dataclass(frozen=True, eq=False)
class Node:
    """One layer as an instance of its own class, with the name of its LayerType and its tensors
    (None for a missing optional input).
    """

    layer: Any
    kind: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def where(self) -> str:
        """The layer's name, type and metadata, which includes its source line."""
        metadata = getattr(self.layer, "metadata", "")
        return f"layer {self.layer.name!r} ({self.kind})" + (
            f", {metadata}" if metadata else ""
        )

    def error(self, message: str) -> NetworkEvaluationError:
        return NetworkEvaluationError(message, where=self.where)

    def evaluate(self, values: Values) -> None:
        """Compute the layer's outputs in `values`, which has its inputs. The outputs are checked
        against TensorRT's dtypes and shapes.
        """
        evaluator = EVALUATORS.get(self.kind)
        if evaluator is None:
            raise self.error(f"the reference does not evaluate {self.kind} layers")
        operands = tensorrt8.evaluation.operands(
            [None if tensor is None else values[tensor] for tensor in self.inputs]
        )
        try:
            result = evaluator(self.layer, *operands)
        except TrtBuildError:
            raise
        except Exception as error:
            raise self.error(f"cannot be evaluated: {error}") from error
        if not isinstance(result, tuple):
            result = (result,)
        self.put(values, *result)

    def put(self, values: Values, *results: Tensor) -> None:
        """Store the outputs in `values`.

        Raises NetworkEvaluationError unless the dtypes and lengths (except -1) are TensorRT's. In a
        weakly typed network half and float32 are interchangeable.
        """
        results = tensorrt8.evaluation.results(
            results, [dtype for dtype, _ in self.expected]
        )
        for i, (value, (dtype, shape)) in enumerate(
            zip(results, self.expected, strict=True)
        ):
            if value.dtype != dtype or not fits(value.shape, shape):
                actual = f"{value.dtype} {tuple(value.shape)}"
                raise self.error(
                    f"output {i} is {actual} here; TensorRT reports {dtype} {shape}"
                )
        values.update(zip(self.outputs, results, strict=True))

    @cached_property
    def expected(self) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
        """TensorRT's dtype and shape (-1 for any length) of each output."""
        try:
            fixed = tensorrt8.evaluation.output_dtype(self.kind)
            return tuple(
                (fixed or torch_dtype(tensor.dtype), tuple(tensor.shape))
                for tensor in self.outputs
            )
        except (KeyError, ValueError, RuntimeError) as error:
            # Without a GPU, TensorRT follows every error with one about CUDA. The message before it
            # has the cause.
            causes = [message for message in MESSAGES if "cudaError" not in message]
            message = causes[-1] if causes else str(error)
            raise self.error(
                f"TensorRT has no usable shape or dtype for an output: {message}"
            ) from error


def fits(lengths: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether actual lengths match a shape with wildcards (-1)."""
    return len(lengths) == len(shape) and all(
        expected in (-1, length)
        for length, expected in zip(lengths, shape, strict=True)
    )


def read_layers(network: INetworkDefinition) -> list[Node]:
    """Every layer of the network, in the network's order."""
    return [_read(layer) for layer in typed_layers(network)]


def _read(layer: ILayer) -> Node:
    inputs = tuple(layer.get_input(i) for i in range(layer.num_inputs))
    outputs = tuple(layer.get_output(i) for i in range(layer.num_outputs))
    return Node(layer, layer_type(layer), inputs, outputs)
