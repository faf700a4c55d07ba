"""Tensor operators on 0-d tensors that hold a traced size: evaluated as numbers, so that sizes stay
recognizable.

Tracing writes `x.size(0) // 2` as NumToTensor, floor_divide on 0-d tensors, Int. These evaluators
are selected (operators.py) if every tensor argument is a DynamicScalar or a static 0-d tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from builder.conversion import scalars
from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.evaluators.prim import dtype_of_code
from builder.conversion.registry import evaluator
from builder.conversion.values import Number, item_of

BINARY = {
    "mul.Tensor": "mul",
    "mul.Scalar": "mul",
    "floor_divide": "floordiv",
    "floor_divide.Scalar": "floordiv",
    "div.Tensor": "truediv",
    "div.Scalar": "truediv",
    "true_divide.Tensor": "truediv",
    "maximum": "max",
    "max.other": "max",
    "minimum": "min",
    "min.other": "min",
}
SCALED = {
    "add.Tensor": "add",
    "add.Scalar": "add",
    "sub.Tensor": "sub",
    "sub.Scalar": "sub",
}


def _zero_dim(value: DynamicScalar) -> Any:
    """A result as torch's 0-d tensor: static, or a DynamicScalar that promotes like one."""
    if isinstance(value, DynamicScalar):
        return replace(value, zero_dim=True)
    return torch.tensor(value)


def _register(key: str, compute: Callable[..., Any]) -> None:
    @evaluator(f"aten::{key}")
    def evaluate(ctx: ConversionContext, *values: object) -> Any:
        return _zero_dim(compute(ctx, *(item_of(value) for value in values)))


def _scaled(
    ctx: ConversionContext, operation: str, a: DynamicScalar, b: Number, alpha: int = 1
) -> Any:
    """a + alpha * b, or a - alpha * b"""
    return scalars.binary(ctx, operation, a, scalars.binary(ctx, "mul", b, alpha))


def _reversed(ctx: ConversionContext, a: Any, b: Any, alpha: Any = 1) -> Any:
    """b - alpha * a"""
    return _scaled(ctx, "sub", b, a, alpha)


def _negative(ctx: ConversionContext, a: DynamicScalar) -> Any:
    return scalars.binary(ctx, "sub", 0, a)


def _divided(ctx: ConversionContext, a: DynamicScalar, b: int, mode: str | None) -> Any:
    """a / b, optionally rounded down or toward zero"""
    if mode == "trunc":
        return scalars.truncated(ctx, a, b)
    return scalars.binary(ctx, "floordiv" if mode == "floor" else "truediv", a, b)


for _key in ("div.Tensor_mode", "div.Scalar_mode"):
    _register(_key, _divided)
for _key, _operation in BINARY.items():
    _register(
        _key,
        lambda ctx, a, b, operation=_operation: scalars.binary(ctx, operation, a, b),
    )
for _key, _operation in SCALED.items():
    _register(
        _key,
        lambda ctx, *values, operation=_operation: _scaled(ctx, operation, *values),
    )
for _operation in scalars.COMPARISON:
    for _overload in ("Tensor", "Scalar"):
        _register(
            f"{_operation}.{_overload}",
            lambda ctx, a, b, operation=_operation: scalars.compare(
                ctx, operation, a, b
            ),
        )
for _key in ("remainder.Tensor", "remainder.Scalar"):
    _register(_key, scalars.modulo)
for _key in ("rsub.Tensor", "rsub.Scalar"):
    _register(_key, _reversed)
_register("neg", _negative)


@evaluator("aten::to.dtype", "aten::to.prim_dtype")
def to(
    ctx: ConversionContext,
    value: DynamicScalar,
    dtype: int | None = None,
    *_: bool | None,
) -> Any:
    """The number in another dtype; int64 and float32 stay numbers."""
    target = dtype_of_code(dtype) or value.dtype
    if target == torch.float64:
        target = torch.float32
    if target in (torch.int64, torch.float32, torch.bool):
        return _zero_dim(scalars.convert(ctx, value, target))
    return ctx.tensor(value, target)
