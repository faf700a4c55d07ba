"""Helpers for branches and loops: the outside values that their blocks read, and the tensors that
replace them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.facts import is_tensor
from builder.conversion.lists import TensorList
from builder.conversion.packing import UNPACK, Packed, is_packed
from builder.conversion.values import Operand, Unset
from builder.engine import ITensor
from builder.graph_types import Block

UNRETURNABLE = (list, dict, str, Packed, TensorList, Unset)
"""Types of values that conditionals and loops cannot return."""


def is_unknown(value: object) -> bool:
    """Whether the value is computed at run time."""
    return isinstance(value, DynamicScalar) or is_tensor(value)


def one_or_all(values: list[Any]) -> Any:
    """The value itself for a node with one output, a list for several."""
    if len(values) == 1:
        return values[0]
    return values


def as_flag(ctx: ConversionContext, condition: Operand) -> ITensor:
    """The condition as a 0-d bool tensor."""
    tensor = (
        condition.tensor
        if isinstance(condition, DynamicScalar)
        else ctx.tensor(condition)
    )
    return ctx.reshape(ctx.cast(tensor, torch.bool), [])


def widened(ctx: ConversionContext, *tensors: ITensor) -> list[ITensor]:
    """The tensors, cast to float32 if the precision policy made them half."""
    half = ctx.policy_half
    wide = []
    for tensor in tensors:
        if half and ctx.dtype(tensor) == half:
            tensor = ctx.cast(tensor, torch.float32)
        wide.append(tensor)
    return wide


def require_same_dtype_and_rank(
    ctx: ConversionContext, a: Operand, b: Operand, subject: str
) -> None:
    """Refuses tensors of different dtype or rank."""
    if ctx.dtype(a) != ctx.dtype(b):
        raise Unconvertible(
            f"{subject} of two dtypes, {ctx.dtype(a)} and {ctx.dtype(b)}",
            "cast both to one dtype",
        )
    if ctx.rank(a) != ctx.rank(b):
        raise Unconvertible(f"{subject} of two ranks, {ctx.rank(a)} and {ctx.rank(b)}")


def read_outside(block: Block) -> list[str]:
    """The names of the values that a block reads from outside, inner blocks included."""
    inside = {value.debugName() for value in block.inputs()}
    names: dict[str, None] = {}
    for node in block.nodes():
        operands = [value.debugName() for value in node.inputs()]
        for inner in node.blocks():
            operands += read_outside(inner)
        names.update(dict.fromkeys(name for name in operands if name not in inside))
        inside |= {value.debugName() for value in node.outputs()}
    results = [value.debugName() for value in block.outputs()]
    names.update(dict.fromkeys(name for name in results if name not in inside))
    return list(names)


def values_outside(ctx: ConversionContext, names: Sequence[str]) -> dict[str, Any]:
    """The named values. Packed sequences are refused: the layers of a mask would be created inside
    the block, for all users.
    """
    values = {name: ctx.values[name] for name in names}
    if any(map(is_packed, values.values())):
        raise Unconvertible(
            "a data-dependent branch or loop reads a packed sequence", UNPACK
        )
    return values


def named(name: str, otherwise: str, before: str = "") -> str:
    """The words `before` and a value's name; `otherwise` for a value without a name of its own,
    which has a number.
    """
    if name.removeprefix("_").isdigit():
        return otherwise
    return f"{before}%{name}"
