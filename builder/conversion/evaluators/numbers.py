"""Operators on Python numbers: every overload that PyTorch registers, static or with
DynamicScalars.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from builder.conversion import scalars
from builder.conversion.arguments import static
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.facts import is_any_tensor, is_tensor
from builder.conversion.overloads import NUMBERS, numeric, overloads
from builder.conversion.registry import evaluator, for_each
from builder.conversion.values import Operand, Scalar
from builder.dtypes import name_of
from builder.graph_types import Node

BINARY = {
    "aten::add": "add",
    "aten::sub": "sub",
    "aten::mul": "mul",
    "aten::floordiv": "floordiv",
    "aten::div": "truediv",
    "prim::min": "min",
    "prim::max": "max",
}


@for_each(*BINARY.items())
def _register_binary(name: str, operation: str) -> None:
    @evaluator(*numeric(name))
    def binary(ctx: ConversionContext, a: Scalar, b: Scalar) -> Any:
        return ctx.arithmetic(operation, a, b)


@for_each(*scalars.COMPARISON)
def _register_comparison(name: str) -> None:
    @evaluator(*numeric(f"aten::{name}"))
    def compare(ctx: ConversionContext, a: Scalar, b: Scalar) -> Any:
        return scalars.compare(ctx, name, a, b)


@evaluator(*numeric("aten::remainder"))
def remainder(ctx: ConversionContext, a: Scalar, b: Scalar) -> Any:
    """Python's a % b."""
    return scalars.modulo(ctx, a, b)


@evaluator("aten::__lshift__.int", "aten::__rshift__.int")
def shift(ctx: ConversionContext, node: Node, a: Scalar, b: Scalar) -> Any:
    """a << b, a >> b: a product or quotient with a power of two"""
    positions = static(b, "the number of bits")
    if positions < 0:
        raise Unconvertible(
            "a shift by a negative number of bits, which Python also refuses"
        )
    factor = 2**positions
    return a * factor if node.kind() == "aten::__lshift__" else a // factor


MOST_SORTED = 8
"""Maximum length of a list that is sorted by minima and maxima, whose number is quadratic."""


@evaluator("aten::sorted.int", "aten::sorted.float")
def ascending(ctx: ConversionContext, values: list[Any]) -> list[Any]:
    """sorted(list of numbers): a sorting network if they are known only at run time"""
    if not any(isinstance(value, DynamicScalar) for value in values):
        return sorted(values)
    if len(values) > MOST_SORTED:
        raise Unconvertible(
            f"{len(values)} numbers that are computed at run time are sorted"
        )
    ordered = list(values)
    for end in range(len(ordered) - 1, 0, -1):
        for index in range(end):
            first, second = ordered[index], ordered[index + 1]
            ordered[index] = ctx.minimum(first, second)
            ordered[index + 1] = ctx.maximum(first, second)
    return ordered


@evaluator(*numeric("aten::__round_to_zero_floordiv"))
def round_to_zero(ctx: ConversionContext, a: Scalar, b: Scalar) -> Any:
    """C's integer division."""
    return scalars.truncated(ctx, a, b)


@evaluator(*numeric("aten::neg"))
def negative(ctx: ConversionContext, a: Scalar) -> Any:
    """-a"""
    return -a


@evaluator(*numeric("prim::abs"))
def absolute(ctx: ConversionContext, a: Scalar) -> Any:
    """abs(a)"""
    return ctx.maximum(a, -a)


@evaluator(*numeric("aten::pow"))
def power(ctx: ConversionContext, node: Node, a: Scalar, b: Scalar) -> Any:
    """a ** b: a product for a small integer exponent, exact for sizes; else in float32"""
    kind = str(node.output().type())
    if not isinstance(a, DynamicScalar) and not isinstance(b, DynamicScalar):
        if kind == "float":
            return float(a**b)
        return a**b
    if isinstance(b, int) and 0 <= b <= 8:
        result = math.prod([a] * b)
    else:
        numbers = (scalars.convert(ctx, value, torch.float32) for value in (a, b))
        result = ctx.arithmetic("pow", *numbers)
    if kind == "int":
        return result
    return scalars.convert(ctx, result, torch.float32)


@for_each(
    ("floor", math.floor), ("ceil", math.ceil), ("round", lambda a: float(round(a)))
)
def _register_rounding(name: str, python: Callable[[Any], Any]) -> None:
    @evaluator(*numeric(f"aten::{name}"))
    def rounding(ctx: ConversionContext, a: Scalar) -> Any:
        if not isinstance(a, DynamicScalar):
            return python(a)
        whole = (
            a if not a.dtype.is_floating_point else scalars.unary(ctx, name.upper(), a)
        )
        return scalars.convert(
            ctx, whole, torch.float32 if name == "round" else torch.int64
        )


@for_each(
    *"sqrt exp log sin cos tan asin acos atan sinh cosh asinh acosh atanh".split()
)
def _register_function(name: str) -> None:
    @evaluator(
        *overloads(
            f"aten::{name}", lambda types: len(types) == 1 and types[0] in NUMBERS
        )
    )
    def function(ctx: ConversionContext, a: Scalar) -> Any:
        if not isinstance(a, DynamicScalar):
            return getattr(math, name)(a)
        return scalars.unary(ctx, name.upper(), scalars.convert(ctx, a, torch.float32))


@for_each(("Int", torch.int64), ("Float", torch.float32), ("Bool", torch.bool))
def _register_conversion(name: str, dtype: torch.dtype) -> None:
    keys = overloads(
        f"aten::{name}",
        lambda types: types in (["Tensor"], ["int"], ["float"], ["bool"], ["number"]),
    )
    implicit = overloads(f"aten::{name}Implicit", lambda types: types == ["Tensor"])

    @evaluator(*keys, *implicit)
    def number(ctx: ConversionContext, node: Node, value: Operand) -> Any:
        single = item(ctx, node, value)
        if isinstance(single, DynamicScalar):
            single = replace(single, zero_dim=False)
        return scalars.convert(ctx, single, dtype)


@evaluator("aten::item", "aten::ScalarImplicit")
def item(ctx: ConversionContext, node: Node, value: object) -> Any:
    """The number in a one-element tensor, which must be 0-d for an implicit read (`7 // x` in
    TorchScript). A number is returned unchanged.
    """
    if is_any_tensor(value):
        _refuse_as_torch(node.kind(), list(value.shape), ctx.dtype(value))
    if isinstance(value, torch.Tensor):
        return value.item()
    if is_tensor(value):
        return ctx.scalar(value)
    return value


def _refuse_as_torch(kind: str, shape: list[int], dtype: torch.dtype) -> None:
    """Refuses a call that torch also refuses, with its line: the model has never run."""
    fraction = kind == "aten::IntImplicit" and dtype.is_floating_point
    if fraction or (kind.endswith("Implicit") and shape):
        raise Unconvertible(
            f"a tensor ({name_of(dtype)}, shape {shape}) is passed where TorchScript expects one "
            "number, which torch also refuses",
            "compute with tensors: torch.floor_divide(torch.tensor(7), x) for `7 // x`",
        )
    if -1 not in shape and math.prod(shape) != 1:
        raise Unconvertible(
            f"a tensor of shape {shape} is read as one number, which torch also refuses",
            "read one element of it",
        )


@for_each(
    ("__and__", "AND", lambda a, b: a & b, False),
    ("__or__", "OR", lambda a, b: a | b, True),
    ("__xor__", "XOR", lambda a, b: a ^ b, None),
)
def _register_logic(
    name: str, layer: str, python: Callable[[Any, Any], Any], decisive: bool | None
) -> None:
    """`decisive` is the static operand that determines the result; the other static operand is
    neutral.
    """

    @evaluator(*numeric(f"aten::{name}"))
    def logic(ctx: ConversionContext, a: Scalar, b: Scalar) -> Any:
        if not isinstance(a, DynamicScalar) and not isinstance(b, DynamicScalar):
            return python(a, b)
        if any(ctx.dtype(value) != torch.bool for value in (a, b)):
            raise Unconvertible(f"{name} of a number that is computed at run time")
        for operand, other in ((a, b), (b, a)):
            if not isinstance(operand, DynamicScalar) and decisive is not None:
                return operand if operand == decisive else other
        output = ctx.elementwise(
            layer, *(scalars.vector(ctx, value, torch.bool) for value in (a, b))
        )
        return DynamicScalar(ctx, output, scalars.unknown(output), torch.bool)


@evaluator("aten::__not__")
def negation(ctx: ConversionContext, a: Scalar) -> Any:
    """not a"""
    if not isinstance(a, DynamicScalar):
        return not a
    output = ctx.unary("NOT", scalars.convert(ctx, a, torch.bool).tensor)
    return DynamicScalar(ctx, output, scalars.unknown(output), torch.bool)


@evaluator("aten::__is__")
def identical(ctx: ConversionContext, a: object, b: object) -> bool:
    """`is`, which TorchScript uses to compare with None."""
    return a is b


@evaluator("aten::__isnot__")
def not_identical(ctx: ConversionContext, a: object, b: object) -> bool:
    """`is not`"""
    return a is not b


_PLAIN = ("str", "Device", "AnyEnumType")


@evaluator(*overloads("aten::eq", lambda types: types[0] in _PLAIN))
def equal(ctx: ConversionContext, a: Any, b: Any) -> Any:
    """a == b of static values"""
    return static(a, "an operand") == static(b, "an operand")


@evaluator(*overloads("aten::ne", lambda types: types[0] in _PLAIN))
def unequal(ctx: ConversionContext, a: Any, b: Any) -> Any:
    """a != b of static values"""
    return static(a, "an operand") != static(b, "an operand")


@evaluator("aten::format")
def format_text(ctx: ConversionContext, template: str, *values: object) -> str:
    """str.format of static values; as in TorchScript, `{}` is the only field"""
    first, *rest = static(template, "the template").split("{}")
    if len(rest) != len(values):
        raise Unconvertible(
            f"{len(values)} values are formatted as {template!r}, which has {len(rest)} fields"
        )
    filled = (_text(value) + part for value, part in zip(values, rest, strict=True))
    return "".join([first, *filled])


@evaluator("aten::str")
def text_of(ctx: ConversionContext, value: object) -> str:
    """str(value) of a static value"""
    return _text(value)


def _text(value: object) -> str:
    """The text of a static value in TorchScript: 1.0 is `1.`, and texts in a list have no quotes.
    Raises Unconvertible for a value that is known only at run time, and for a tensor.
    """
    value = static(value, "a value that becomes text")
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        is_short = math.isfinite(value) and abs(value) < 1e10 and value == int(value)
        return f"{int(value)}." if is_short else f"{value:.17g}"
    if value is None or isinstance(value, str | int):
        return str(value)
    raise Unconvertible(f"the text of a {type(value).__name__} is not known")


@evaluator("aten::__range_length")
def range_length(ctx: ConversionContext, low: Any, high: Any, step: Any) -> Any:
    """The number of elements of range(low, high, step)."""
    if not any(isinstance(value, DynamicScalar) for value in (low, high, step)):
        return len(range(low, high, step))
    if not isinstance(step, int) or step == 0:
        raise Unconvertible("a range of dynamic length needs a static step")
    low, high = (low, high) if step > 0 else (high, low)
    span = high - low + (abs(step) - 1)
    return ctx.maximum(span // abs(step), 0)


@evaluator("aten::__derive_index")
def derive_index(
    ctx: ConversionContext, index: Scalar, start: Scalar, step: Scalar
) -> Any:
    """start + index * step"""
    return start + index * step
