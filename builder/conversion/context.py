"""ConversionContext: the network under construction and the facts of its values.

A value is one of: an ITensor; a torch.Tensor (static: a weight, or computed from weights); a
DynamicScalar; a Python int, float, bool, str or None; a list or dict of values. The helpers of
converters are in a chain of base classes, one file each: Facts (of tensors), Constants (and casts),
Lengths (of axes), Arrangement (reshape, slice, permute). This class adds operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from builder.conversion import dtypes
from builder.conversion.arrangement import Arrangement
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.facts import axis_symbol as axis_symbol
from builder.conversion.unconvertible import Unconvertible as Unconvertible
from builder.conversion.values import Operand, Tensor
from builder.engine import ITensor, tensorrt8


class ConversionContext(Arrangement):
    """The network `net`, the value of each graph value, and the helpers that every converter
    shares.
    """

    def add_control_flow(self, kind: str) -> None:
        """Record that the network gets a LOOP or a CONDITIONAL. Raises Unconvertible if it has the
        other one, and TensorRT computes such networks incorrectly.
        """
        may_mix = self.capabilities.takes("CONDITIONAL.WITH_LOOP", "FLOAT")
        if self.control_flow - {kind} and not may_mix:
            raise Unconvertible(tensorrt8.BRANCH_AND_LOOP, tensorrt8.NEWER_OR_FIXED)
        self.control_flow.add(kind)

    def tensor(self, value: Any, dtype: torch.dtype | None = None) -> ITensor:
        """`value` as an ITensor of torch's `dtype` (its own by default); numbers become 0-d, lists
        of numbers 1-d.
        """
        if isinstance(value, DynamicScalar):
            value = self._zero_dim(value)
        elif isinstance(value, list | tuple):
            value = self._stack(value, dtype)
        elif isinstance(value, bool | int | float):
            value = torch.tensor(value, dtype=dtype or self.dtype(value))
        if isinstance(value, torch.Tensor):
            return self.constant(value if dtype is None else value.to(dtype))
        return value if dtype is None else self.cast(value, dtype)

    def _stack(self, values: Sequence[Any], dtype: torch.dtype | None) -> Any:
        if not any(isinstance(value, DynamicScalar) for value in values):
            return torch.tensor(list(values), dtype=dtype)
        return self.together(list(values))

    def _zero_dim(self, scalar: DynamicScalar) -> ITensor:
        """The scalar as a 0-d ITensor that keeps its expression."""
        result = self.reshape(scalar.tensor, [])
        self.facts(result).scalar = scalar
        self.remember_dtype(result, scalar.dtype)
        return result

    def scalar(self, tensor: ITensor) -> DynamicScalar:
        """A one-element ITensor as a DynamicScalar."""
        facts = self.facts(tensor)
        if facts.scalar is None:
            flat = self.reshape(tensor, [1])
            symbol = sympy.Symbol(f"{tensor.name}", integer=True)
            facts.scalar = DynamicScalar(self, flat, symbol, self.dtype(tensor))
            if self.loops:
                self.varying.add(symbol)
        return facts.scalar

    def broadcast(self, *tensors: Tensor) -> list[ITensor]:
        """The tensors as ITensors of one rank: lower ranks get leading axes of size 1, as PyTorch
        broadcasts.
        """
        rank = max((self.rank(tensor) for tensor in tensors), default=0)
        return [self._operand(tensor, self.dtype(tensor), rank) for tensor in tensors]

    def operands(
        self, *values: Operand, dtype: torch.dtype | None = None
    ) -> list[ITensor]:
        """The values as ITensors of one rank, with the dtype that PyTorch promotes them to (or
        `dtype`).
        """
        dtype = dtype or self.promoted(*values)
        rank = max(self.rank(value) for value in values)
        return [self._operand(value, dtype, rank) for value in values]

    def _operand(self, value: Operand, dtype: torch.dtype, rank: int) -> ITensor:
        """Cast and reshape static values before they become constants, without layers."""
        if isinstance(value, bool | int | float):
            whole = isinstance(value, int) and not dtype.is_floating_point
            # 300 wraps in uint8
            value = (
                torch.tensor(value).to(dtype)
                if whole
                else torch.tensor(value, dtype=dtype)
            )
        if isinstance(value, torch.Tensor):
            return self._constant_at_rank(value, dtype, rank)
        if isinstance(value, DynamicScalar):
            if rank:
                return self.at_rank(self.cast(value.tensor, dtype), rank)
            return self.tensor(value, dtype)
        return self.at_rank(self.cast(value, dtype), rank)

    def promoted(self, *values: Operand) -> torch.dtype:
        """PyTorch's result dtype of an operation on these tensors and numbers. Raises Unconvertible
        for int16, to which int8 and uint8 promote: in int32 the result would not wrap around.
        """
        dtype = self._promoted(*values)
        if dtype == torch.int16:
            raise Unconvertible(
                "the operands promote to int16, and TensorRT has no int16",
                "cast the inputs to int32",
            )
        return dtype

    def compared_in(self, *values: Operand) -> torch.dtype:
        """The dtype in which values are compared: the promoted one, but int32 for int16 and bool,
        which has the same order.
        """
        dtype = self._promoted(*values)
        return torch.int32 if dtype in (torch.int16, torch.bool) else dtype

    def _promoted(self, *values: Operand) -> torch.dtype:
        return dtypes.promote(
            *((self.dtype(value), self._category(value)) for value in values)
        )

    def _category(self, value: Operand) -> str:
        if isinstance(value, DynamicScalar):
            return "zero-dim" if value.zero_dim else "number"
        if isinstance(value, bool | int | float):
            return "number"
        return "dimensioned" if self.rank(value) else "zero-dim"
