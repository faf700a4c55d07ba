"""IUnaryLayer: every UnaryOperation. ROUND rounds ties to even."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import REDUCED
from builder.reference.registry import evaluates

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "EXP": torch.exp,
    "LOG": torch.log,
    "SQRT": torch.sqrt,
    "RECIP": torch.reciprocal,
    "ABS": torch.abs,
    "NEG": torch.neg,
    "SIN": torch.sin,
    "COS": torch.cos,
    "TAN": torch.tan,
    "SINH": torch.sinh,
    "COSH": torch.cosh,
    "ASIN": torch.asin,
    "ACOS": torch.acos,
    "ATAN": torch.atan,
    "ASINH": torch.asinh,
    "ACOSH": torch.acosh,
    "ATANH": torch.atanh,
    "CEIL": torch.ceil,
    "FLOOR": torch.floor,
    "ERF": torch.erf,
    "NOT": torch.logical_not,
    "SIGN": torch.sign,
    "ROUND": torch.round,
    "ISINF": torch.isinf,
    "ISNAN": torch.isnan,
}


@evaluates("UNARY")
def unary(layer: ILayer, x: Tensor) -> Tensor:
    """`op` of x, element-wise. ISINF, ISNAN and NOT return bools, the others x's dtype."""
    result = UNARY[layer.op.name](x.float() if x.dtype in REDUCED else x)
    if result.dtype == torch.bool:
        return result
    return result.to(x.dtype)
