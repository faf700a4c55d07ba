"""Operators on numbers: sizes and arithmetic on sizes."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

INT = torch._C.IntType.get()
FLOAT = torch._C.FloatType.get()
BOOL = torch._C.BoolType.get()

KINDS: dict[Any, str] = {
    operator.add: "aten::add",
    operator.sub: "aten::sub",
    operator.mul: "aten::mul",
    operator.floordiv: "aten::floordiv",
    operator.truediv: "aten::div",
    operator.mod: "aten::remainder",
    operator.neg: "aten::neg",
    operator.eq: "aten::eq",
    operator.ne: "aten::ne",
    operator.lt: "aten::lt",
    operator.le: "aten::le",
    operator.gt: "aten::gt",
    operator.ge: "aten::ge",
    operator.and_: "aten::__and__",
    operator.or_: "aten::__or__",
    operator.not_: "aten::__not__",
    torch.sym_not: "aten::__not__",
    torch.sym_max: "prim::max",
    torch.sym_min: "prim::min",
    torch.sym_float: "aten::Float",
    torch.sym_int: "aten::Int",
    math.trunc: "aten::Int",
    math.floor: "aten::floor",
    math.ceil: "aten::ceil",
    math.sqrt: "aten::sqrt",
    round: "aten::round",
    torch.ops.aten.sym_size.int: "aten::size",
    torch.ops.aten.sym_numel.default: "aten::numel",
    torch.ops.aten.sym_stride.int: "aten::stride",
}
"""The TorchScript operator for each numeric function that an exported graph calls."""
for _name, _kind in (("_sym_sqrt", "aten::sqrt"), ("_sym_log2", "aten::log2")):
    if hasattr(torch, _name):
        KINDS[getattr(torch, _name)] = _kind


def is_number(item: Any, number: int) -> bool:
    """Whether an argument is this integer; a boolean, float or symbolic size is not."""
    return type(item) is int and item == number


def type_of(value: Any) -> Any:
    """Return torch's type of a number, known or symbolic. Raises TypeError for anything else."""
    if isinstance(value, bool | torch.SymBool):
        return BOOL
    if isinstance(value, int | torch.SymInt):
        return INT
    if isinstance(value, float | torch.SymFloat):
        return FLOAT
    raise TypeError(f"{type(value).__name__} is not a number")
