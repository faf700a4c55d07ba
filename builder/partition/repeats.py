"""A cache of trial conversions: the layers of a model repeat, and adding layers to TensorRT is
slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion import ConversionContext, is_tensor
from builder.engine import ITensor
from builder.partition.view import Step

MOST_VALUES = 16
"""Integer constants up to this value are distinguished by their values, which can be axes and
sizes; larger ones are never treated as equal.
"""


class Repeats:
    """Converted nodes by their arguments.

    A node with the same operator, dtypes, symbolic shapes and numbers as an earlier one gets the
    tensors of that one as placeholders, because the conversion of later nodes depends only on
    these. Weights are compared by shape only. Nodes that return integers, which can become sizes,
    and nodes that create new symbolic axes are not cached. If a node is refused later nevertheless,
    its segment is partitioned again.
    """

    def __init__(self, ctx: ConversionContext) -> None:
        self.ctx = ctx
        self.known: dict[Any, list[Any]] = {}
        self.signatures: dict[str, Any] = {}
        """The key of each value; None for a value without an equal."""

    def find(self, step: Step) -> tuple[Any, list[Any] | None]:
        """The key of the node, or None, and the placeholders for its outputs, or None."""
        signatures = self.signatures
        for name in step.inputs:
            if name not in signatures:
                signatures[name] = _signature(self.ctx, self.ctx.values[name])
        signature = (step.key, *map(signatures.__getitem__, step.inputs))
        if None in signature:
            return None, None
        return signature, self.known.get(signature)

    def remember(self, signature: object, step: Step) -> None:
        """Record a converted node: its outputs are the placeholders for later nodes with the same
        key.
        """
        results = [self.ctx.values[name] for name in step.outputs]
        input_symbols = set().union(
            *(self._symbols(self.ctx.values[name]) for name in step.inputs)
        )
        if all(
            is_tensor(result)
            and not _is_whole(self.ctx, result)
            and self._symbols(result) <= input_symbols
            for result in results
        ):
            self.known[signature] = results

    def _symbols(self, value: object) -> set[Any]:
        if isinstance(value, list):
            return set().union(*map(self._symbols, value))
        if is_tensor(value):
            return set().union(*(expr.free_symbols for expr in _exprs(self.ctx, value)))
        return set()


def _signature(ctx: ConversionContext, value: object) -> Any:
    if isinstance(value, torch.Tensor):
        return _constant(value)
    if is_tensor(value):
        facts = ctx.facts(value)
        whole = (tuple(value.shape), value.dtype, ctx.dtype(value), *_exprs(ctx, value))
        return None if facts.scalar is not None else whole
    if isinstance(value, list):
        inner = [_signature(ctx, element) for element in value]
        if None in inner:
            return None
        return (list, *inner)
    if isinstance(value, bool | int | float | str | None):
        return type(value), value
    return None


def _constant(value: torch.Tensor) -> Any:
    if value.is_floating_point():
        return value.shape, value.dtype
    if value.numel() <= MOST_VALUES:
        return (value.shape, value.dtype, *value.flatten().tolist())
    return None


def _exprs(ctx: ConversionContext, tensor: ITensor) -> Sequence[Any]:
    return [
        ctx.expr(tensor, axis) for axis, length in enumerate(tensor.shape) if length < 0
    ]


def _is_whole(ctx: ConversionContext, tensor: ITensor) -> bool:
    dtype = ctx.dtype(tensor)
    return not dtype.is_floating_point and dtype != torch.bool
