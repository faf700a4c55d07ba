"""A layer of a network, read back and ready to be evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from builder.engine import MESSAGES, tensorrt8
from builder.errors import NetworkEvaluationError, TrtBuildError
from builder.reference.dtypes import torch_dtype
from builder.reference.registry import EVALUATORS

# The value of each tensor. Tensors are compared by identity: pybind11 gives one Python object for
# one ITensor as long as somebody holds it, and the nodes hold all of them.
Values = dict[Any, Tensor]


@dataclass(frozen=True, eq=False)
class Node:
    """One layer: typed as its own class, its LayerType's name, its tensors (None for an optional
    input not given).
    """

    layer: Any
    kind: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def where(self) -> str:
        """The layer's name, type and metadata, which is where its source line stands."""
        metadata = getattr(self.layer, "metadata", "")
        return f"layer {self.layer.name!r} ({self.kind})" + (f", {metadata}" if metadata else "")

    def error(self, message: str) -> NetworkEvaluationError:
        return NetworkEvaluationError(message, where=self.where)

    def evaluate(self, values: Values) -> None:
        """Put the layer's outputs into `values`, which has its inputs; checked against what
        TensorRT says of them.
        """
        evaluator = EVALUATORS.get(self.kind)
        if evaluator is None:
            raise self.error(f"the reference has no evaluation of {self.kind} layers")
        operands = tensorrt8.evaluation.operands(
            [None if tensor is None else values[tensor] for tensor in self.inputs]
        )
        try:
            result = evaluator(self.layer, *operands)
        except TrtBuildError:
            raise
        except Exception as error:
            raise self.error(f"cannot be evaluated: {error}") from error
        self.put(values, *(result if isinstance(result, tuple) else (result,)))

    def put(self, values: Values, *results: Tensor) -> None:
        """Enter the outputs into `values`; raises unless dtypes and (but for -1) lengths are what
        TensorRT says; a weakly typed network takes half and float32 for one another.
        """
        results = tensorrt8.evaluation.results(results, [dtype for dtype, _ in self.expected])
        for i, (value, (dtype, shape)) in enumerate(zip(results, self.expected, strict=True)):
            if value.dtype != dtype or not fits(value.shape, shape):
                found = f"{value.dtype} {tuple(value.shape)}"
                raise self.error(f"output {i} is {found} here; TensorRT says {dtype} {shape}")
        values.update(zip(self.outputs, results, strict=True))

    @cached_property
    def expected(self) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
        """dtype and shape (-1 for any length) that TensorRT gives to each output."""
        try:
            known = tensorrt8.evaluation.output_dtype(self.kind)
            return tuple(
                (known or torch_dtype(tensor.dtype), tuple(tensor.shape)) for tensor in self.outputs
            )
        except (KeyError, ValueError, RuntimeError) as error:
            # Without a GPU, TensorRT follows every error with one about CUDA: the one before says
            # what is wrong.
            said = next((m for m in reversed(MESSAGES) if "cudaError" not in m), str(error))
            raise self.error(
                f"TensorRT has no usable shape or dtype for an output: {said}"
            ) from error


def fits(lengths: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether actual lengths are what a shape with wildcards (-1) allows."""
    return len(lengths) == len(shape) and all(
        n in (-1, m) for m, n in zip(lengths, shape, strict=True)
    )
