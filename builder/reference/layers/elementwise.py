"""IElementWiseLayer and ISelectLayer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.registry import evaluates


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """The quotient. Integers are truncated toward zero, as in C."""
    if a.is_floating_point():
        return a / b
    return torch.div(a, b, rounding_mode="trunc")


def _floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """The floor of the rounded quotient. torch's floor division would correct quotients that were
    rounded up.
    """
    if a.is_floating_point():
        return torch.floor(a / b)
    return torch.div(a, b, rounding_mode="floor")


ELEMENTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "MAX": torch.maximum,
    "MIN": torch.minimum,
    "SUB": torch.sub,
    "DIV": _divide,
    "POW": torch.pow,
    "FLOOR_DIV": _floor_divide,
    "AND": torch.logical_and,
    "OR": torch.logical_or,
    "XOR": torch.logical_xor,
    "EQUAL": torch.eq,
    "GREATER": torch.gt,
    "LESS": torch.lt,
}


@evaluates("ELEMENTWISE")
def elementwise(layer: ILayer, a: Tensor, b: Tensor) -> Tensor:
    """`op` of a and b, which have equal rank and dtype. Axes of length 1 are broadcast. Comparisons
    return bools.
    """
    if a.dim() != b.dim():
        raise ValueError(
            f"the inputs have {a.dim()} and {b.dim()} dimensions; IElementWiseLayer wants equal"
            " ranks"
        )
    if a.dtype != b.dtype:
        raise ValueError(
            f"the inputs are {a.dtype} and {b.dtype}; IElementWiseLayer wants equal types"
        )
    return ELEMENTWISE[layer.op.name](a, b)


@evaluates("SELECT")
def select(
    layer: ILayer, condition: Tensor, then_value: Tensor, else_value: Tensor
) -> Tensor:
    """then_value where the bool condition is true, else else_value. Axes of length 1
    are broadcast.
    """
    return torch.where(condition, then_value, else_value)
