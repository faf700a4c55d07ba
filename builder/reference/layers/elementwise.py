"""Element-wise layers: IElementWiseLayer, ISelectLayer, IUnaryLayer, IActivationLayer and
IParametricReLULayer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import REDUCED, in_float32
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
    """`op` of x, element-wise. ISINF, ISNAN and NOT return bools, the others x's dtype. ROUND
    rounds ties to even.
    """
    result = UNARY[layer.op.name](x.float() if x.dtype in REDUCED else x)
    if result.dtype == torch.bool:
        return result
    return result.to(x.dtype)


# f(x, alpha, beta): formulas of ActivationType's documentation; alpha and beta are float attributes
# of the layer.
ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "RELU": lambda x, a, b: torch.relu(x),
    "SIGMOID": lambda x, a, b: torch.sigmoid(x),
    "TANH": lambda x, a, b: torch.tanh(x),
    "LEAKY_RELU": lambda x, a, b: torch.where(x >= 0, x, a * x),
    "ELU": lambda x, a, b: torch.where(x >= 0, x, a * torch.expm1(x)),
    "SELU": lambda x, a, b: torch.where(x > 0, b * x, b * a * torch.expm1(x)),
    "SOFTSIGN": lambda x, a, b: x / (1 + x.abs()),
    "SOFTPLUS": lambda x, a, b: a * torch.logaddexp(b * x, torch.zeros_like(x)),
    "CLIP": lambda x, a, b: x.clamp(max=b).clamp(min=a),
    "HARD_SIGMOID": lambda x, a, b: (a * x + b).clamp(0, 1),
    "SCALED_TANH": lambda x, a, b: a * torch.tanh(b * x),
    "THRESHOLDED_RELU": lambda x, a, b: torch.where(x > a, x, torch.zeros_like(x)),
    "GELU_ERF": lambda x, a, b: torch.nn.functional.gelu(x),
    "GELU_TANH": lambda x, a, b: torch.nn.functional.gelu(x, approximate="tanh"),
}


@evaluates("ACTIVATION")
@in_float32
def activation(layer: ILayer, x: Tensor) -> Tensor:
    """`type` of x with `alpha` and `beta`, element-wise. Integers stay integers."""
    return ACTIVATIONS[layer.type.name](x, layer.alpha, layer.beta).to(x.dtype)


@evaluates("PARAMETRIC_RELU")
@in_float32
def parametric_relu(layer: ILayer, x: Tensor, slopes: Tensor) -> Tensor:
    """x if it is at least 0, else x times its slope. Slopes are broadcast to x."""
    return torch.where(x >= 0, x, x * slopes)
