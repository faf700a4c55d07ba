"""The lengths of axes: numbers if static, else DynamicScalars, and as shape tensors for layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from builder.conversion.constants import Constants
from builder.conversion.dynamic import DynamicScalar, Size, expression
from builder.conversion.scalars import binary
from builder.conversion.shape_tensors import DATA, FIX, from_data
from builder.conversion.unconvertible import Unconvertible
from builder.conversion.values import Scalar, Tensor
from builder.engine import ITensor


class Lengths(Constants):
    """Queries of a tensor's sizes, and arithmetic on sizes."""

    def size(self, value: Tensor, axis: int) -> Size:
        """The length of an axis: an int if static, else a DynamicScalar."""
        axis = self.axis(value, axis)
        static = value.shape[axis]
        if static >= 0 or isinstance(value, torch.Tensor):
            return int(static)
        facts = self.facts(value)
        if axis not in facts.sizes:
            facts.sizes[axis] = self._dynamic_size(value, axis)
        return facts.sizes[axis]

    def sizes(self, value: Tensor) -> list[Size]:
        """The length of every axis."""
        return [self.size(value, axis) for axis in range(self.rank(value))]

    def size_of_input(self, tensor: ITensor, axis: int) -> Size | None:
        """The length of an axis without a layer on the tensor: from an axis of an input of the
        network with the same length, None if there is none.
        """
        if tensor.shape[axis] >= 0:
            return int(tensor.shape[axis])
        source = self._input_axis(self.expr(tensor, axis))
        if source is None:
            return None
        name, input_axis = source
        return self.size(self._input(name), input_axis)

    def _dynamic_size(self, tensor: ITensor, axis: int) -> DynamicScalar:
        source = self._input_axis(self.expr(tensor, axis))
        if source is not None and source != (tensor.name, axis):
            # one shape layer for all tensors of a batch
            input_name, input_axis = source
            size = self.size(self._input(input_name), input_axis)
            assert isinstance(size, DynamicScalar)
            return size
        facts = self.facts(tensor)
        if facts.shape is None:
            facts.shape = self.net.add_shape(tensor).get_output(0)
        entry = self.net.add_slice(facts.shape, (axis,), (1,), (1,)).get_output(0)
        return DynamicScalar(self, entry, self.expr(tensor, axis))

    def _input_axis(self, expr: sympy.Expr) -> tuple[str, int] | None:
        """The network input and axis with this length, or None."""
        for index in range(self.net.num_inputs):
            tensor = self.net.get_input(index)
            for axis, length in enumerate(tensor.shape):
                if length < 0 and self.expr(tensor, axis) == expr:
                    return tensor.name, axis
        return None

    def _input(self, name: str) -> ITensor:
        for index in range(self.net.num_inputs):
            tensor = self.net.get_input(index)
            if tensor.name == name:
                return tensor
        raise AssertionError(f"the network has no input {name}")

    def arithmetic(self, operation: str, a: Scalar, b: Scalar) -> Any:
        """An entry of `scalars.ARITHMETIC`, computed in Python if both numbers are static."""
        return binary(self, operation, a, b)

    def minimum(self, a: Scalar, b: Scalar) -> Any:
        """The smaller number; Python's `min` would compare DynamicScalars."""
        return self.arithmetic("min", a, b)

    def maximum(self, a: Scalar, b: Scalar) -> Any:
        """The larger number."""
        return self.arithmetic("max", a, b)

    def shape_tensor(self, sizes: Sequence[Size]) -> ITensor:
        """The sizes as a 1-d ITensor of the index dtype, for layers with a shape input. Refuses
        sizes that depend on data.
        """
        if from_data(self, sizes):
            raise Unconvertible(DATA, FIX)
        return self.together(sizes)

    def together(self, sizes: Sequence[Size]) -> ITensor:
        """The numbers as a 1-d ITensor of the index dtype. Equal lists are concatenated once."""
        key = tuple(
            ("engine", id(size)) if isinstance(size, DynamicScalar) else size
            for size in sizes
        )
        if key not in self._shapes:
            # kept alive, so that their ids stay unique
            self._shapes[key] = (self._shape_of(sizes), list(sizes))
        return self._shapes[key][0]

    def varies(self, *sizes: Size) -> bool:
        """Whether one of them changes between iterations of a loop."""
        return bool(self.varying) and any(
            expression(size).free_symbols & self.varying for size in sizes
        )

    def keep_steady(self, *sizes: Size) -> None:
        """Refuses lengths and starts that change between iterations."""
        if self.varies(*sizes):
            raise Unconvertible(
                "TensorRT does not support a slice whose start or length changes between "
                "iterations of a loop",
                "read rows by x[i] and write them by y[i] = ..., or use a loop with a fixed trip "
                "count",
            )

    def _shape_of(self, sizes: Sequence[Size]) -> ITensor:
        parts: list[ITensor] = []
        run: list[int] = []
        for size in sizes:
            if isinstance(size, DynamicScalar):
                parts += [self._index_constant(run)] if run else []
                parts.append(size.tensor)
                run = []
            else:
                run.append(size)
        if run or not parts:
            parts.append(self._index_constant(run))
        if len(parts) == 1:
            return parts[0]
        return self.concatenate(parts, 0)

    def concatenate(self, tensors: Sequence[ITensor], axis: int) -> ITensor:
        """Concatenate ITensors of one dtype and rank along an axis."""
        layer = self.net.add_concatenation(list(tensors))
        layer.axis = axis
        result = layer.get_output(0)
        self.remember_dtype(result, self.dtype(tensors[0]))
        exprs = self.exprs(tensors[0])
        if exprs:
            exprs[axis] = sum(
                (self.expr(tensor, axis) for tensor in tensors[1:]), exprs[axis]
            )
        return self.set_sizes(result, exprs)
