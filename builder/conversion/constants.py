"""Constants, casts, and the element-wise layers for casts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion import dtypes
from builder.conversion.facts import Facts
from builder.conversion.values import Operand
from builder.engine import ITensor, trt


class Constants(Facts):
    """Static tensors in the network, and ITensors of another dtype."""

    def constant(self, value: torch.Tensor) -> ITensor:
        """The output of a constant layer that shares the tensor's memory. Equal small tensors are
        added once.
        """
        carrier = dtypes.carrier(value.dtype)
        key: Any = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        if value.numel() <= 16 and value.device.type == "cpu":
            key = (
                tuple(value.flatten().tolist()),
                str(value.dtype),
                tuple(value.shape),
            )
            # distinguishes -0.0 from 0.0, and treats NaNs as equal
            key = (
                repr(key[0]),
                *key[1:],
            )
        if key not in self._constants:
            carried = self._narrowed(value, carrier)
            layer = self.net.add_constant(tuple(value.shape), self.weights.of(carried))
            self.weights.alive.append(value)
            output = layer.get_output(0)
            self.remember_dtype(output, value.dtype)
            self._constants[key] = output
        return self._constants[key]

    def is_constant(self, tensor: Operand) -> bool:
        """Whether the ITensor is the output of a constant layer. It may have several users, and
        cannot be a network output.
        """
        return any(tensor is constant for constant in self._constants.values())

    def _narrowed(self, value: torch.Tensor, carrier: torch.dtype) -> torch.Tensor:
        self._warn_of_narrowing(value)
        if value.dtype == torch.int64 and carrier == torch.int32 and value.numel():
            limits = torch.iinfo(torch.int32)
            if int(value.max()) > limits.max or int(value.min()) < limits.min:
                value = value.clamp(limits.min, limits.max)
                self.warn(
                    "an int64 constant outside int32's range is clamped: this TensorRT has no int64"
                )
        return value.to(carrier)

    def _warn_of_narrowing(self, value: torch.Tensor) -> None:
        """Warn about a float64 tensor, except a 0-d one: tracing writes numbers so, and torch
        narrows them, too.
        """
        if value.dtype == torch.float64 and value.dim():
            self.warn(
                f"a float64 constant of shape {tuple(value.shape)} is narrowed to float32"
            )

    def _constant_at_rank(
        self, value: torch.Tensor, dtype: torch.dtype, rank: int
    ) -> ITensor:
        """Cast and reshape a static tensor before it becomes a constant, without layers."""
        self._warn_of_narrowing(value)
        shape = (1,) * (rank - value.dim()) + tuple(value.shape)
        return self.constant(value.to(dtype).reshape(shape))

    def _index_constant(self, values: Sequence[int]) -> ITensor:
        return self.constant(torch.tensor(list(values), dtype=dtypes.index_dtype()))

    def like_scalar(self, tensor: ITensor, value: float | int | bool) -> ITensor:
        """A constant of the tensor's carrier dtype and rank with every axis 1, ready for an
        element-wise layer.
        """
        dtype = dtypes.from_trt(tensor.dtype)
        return self.constant(torch.full((1,) * self.rank(tensor), value, dtype=dtype))

    def cast(self, tensor: ITensor, dtype: torch.dtype) -> ITensor:
        """Convert an ITensor as `tensor.to(dtype)`: a cast layer, and wrap-around for the small
        integers.
        """
        source_dtype = self.dtype(tensor)
        if source_dtype == dtype:
            return tensor
        carrier = dtypes.carrier(dtype)
        result = tensor
        if source_dtype.is_floating_point and dtype == torch.bool:
            result = self.elementwise("EQUAL", tensor, self.like_scalar(tensor, 0.0))
            result = self.net.add_unary(result, trt.UnaryOperation.NOT).get_output(0)
        elif dtypes.from_trt(tensor.dtype) != carrier:
            result = self.net.add_cast(tensor, dtypes.to_trt(carrier)).get_output(0)
        elif (
            self.facts(tensor).dtype is not None
            or dtypes.from_trt(tensor.dtype) != dtype
        ):
            # another torch dtype on the same carrier
            result = self.net.add_identity(tensor).get_output(0)
        self.copy_sizes(tensor, result)
        if dtype in (torch.uint8, torch.int8) and source_dtype != torch.bool:
            result = self._wrap(result, dtype)
        self.facts(result).dtype = None
        self.remember_dtype(result, dtype)
        if dtype == torch.float32 and source_dtype in (torch.float16, torch.bfloat16):
            self.facts(result).wide_of = tensor
        return result

    def _wrap(self, tensor: ITensor, dtype: torch.dtype) -> ITensor:
        """Two's-complement wrap-around of an int32 carrier, as C's conversion that PyTorch
        documents for .to().
        """
        low = torch.iinfo(dtype).min
        shifted = tensor
        if low:
            shifted = self.elementwise("SUB", tensor, self.like_scalar(tensor, low))
        quotient = self.elementwise("FLOOR_DIV", shifted, self.like_scalar(tensor, 256))
        base = self.elementwise("PROD", quotient, self.like_scalar(tensor, 256))
        result = self.elementwise("SUB", tensor, base)
        self.copy_sizes(tensor, result)
        return result

    def wrapped(self, tensor: ITensor, dtype: torch.dtype) -> ITensor:
        """The result of integer arithmetic, wrapped around where `dtype` is narrower than its
        carrier.
        """
        if dtype in (torch.uint8, torch.int8):
            tensor = self._wrap(tensor, dtype)
        self.remember_dtype(tensor, dtype)
        return tensor

    def elementwise(self, operation: str, a: ITensor, b: ITensor) -> ITensor:
        """One IElementWiseLayer on tensors of equal rank and dtype; `operation` is an
        ElementWiseOperation's name.
        """
        output = self.net.add_elementwise(
            a, b, getattr(trt.ElementWiseOperation, operation)
        ).get_output(0)
        return output

    def unary(self, operation: str, a: ITensor) -> ITensor:
        """One IUnaryLayer; `operation` is a UnaryOperation's name. Negation of integers is 0 - a if
        the layer does not support it.
        """
        if operation == "NEG" and not self.capabilities.takes(
            "UNARY.NEG", a.dtype.name
        ):
            return self.elementwise("SUB", self.like_scalar(a, 0), a)
        return self.net.add_unary(a, getattr(trt.UnaryOperation, operation)).get_output(
            0
        )
