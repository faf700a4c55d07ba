"""Tensor operators on 0-d tensors that hold a traced size: evaluated as numbers, so that sizes stay
recognizable.

Tracing writes `x.size(0) // 2` as NumToTensor, floor_divide on 0-d tensors, Int. These evaluators
are selected (operators.py) if every tensor argument is a DynamicScalar or a static 0-d tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from builder.conversion import scalars
from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.evaluators.prim import dtype_of_code
from builder.conversion.registry import evaluator
from builder.conversion.values import Scalar, item_of


def _zero_dim(value: DynamicScalar) -> Any:
    """A result as torch's 0-d tensor: static, or a DynamicScalar that promotes like one."""
    if isinstance(value, DynamicScalar):
        return replace(value, zero_dim=True)
    return torch.tensor(value)


def _register(keys: Iterable[str], compute: Callable[..., Any]) -> None:
    @evaluator(*(f"aten::{key}" for key in keys))
    def evaluate(ctx: ConversionContext, *values: object) -> Any:
        return _zero_dim(compute(ctx, *(item_of(value) for value in values)))


def _divided(ctx: ConversionContext, a: Scalar, b: Scalar, mode: str | None) -> Any:
    """a / b, optionally rounded down or toward zero"""
    if mode == "trunc":
        return scalars.truncated(ctx, a, b)
    return a // b if mode == "floor" else a / b


_register(("add.Tensor", "add.Scalar"), lambda ctx, a, b, alpha=1: a + b * alpha)
_register(("sub.Tensor", "sub.Scalar"), lambda ctx, a, b, alpha=1: a - b * alpha)
_register(("rsub.Tensor", "rsub.Scalar"), lambda ctx, a, b, alpha=1: b - a * alpha)
_register(("neg",), lambda ctx, a: -a)
_register(("mul.Tensor", "mul.Scalar"), lambda ctx, a, b: a * b)
_register(("floor_divide", "floor_divide.Scalar"), lambda ctx, a, b: a // b)
_register(("div.Tensor", "div.Scalar", "true_divide.Tensor"), lambda ctx, a, b: a / b)
_register(("div.Tensor_mode", "div.Scalar_mode"), _divided)
_register(("remainder.Tensor", "remainder.Scalar"), scalars.modulo)
_register(("maximum", "max.other"), ConversionContext.maximum)
_register(("minimum", "min.other"), ConversionContext.minimum)
for _name in scalars.COMPARISON:
    _register(
        (f"{_name}.Tensor", f"{_name}.Scalar"),
        lambda ctx, a, b, name=_name: scalars.compare(ctx, name, a, b),
    )


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
