"""Evaluators of aten operators on numbers and lists, and of those that read a tensor's metadata."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from builder.conversion import scalars
from builder.conversion.arguments import static
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.registry import evaluator

_NUMBERS = ("int", "float", "int_float", "float_int", "")


def _keys(name: str, *more: str) -> list[str]:
    overloads = [*_NUMBERS, "Scalar", "Scalar_Scalar", *more]
    return [f"aten::{name}.{overload}" if overload else f"aten::{name}" for overload in overloads]


def _register_binary(name: str, operation: str) -> None:
    @evaluator(*(k for k in _keys(name) if not (k == f"aten::{name}.Scalar")))
    def binary(ctx: ConversionContext, node: Any, a: Any, b: Any) -> Any:
        return scalars.binary(ctx, operation, a, b)


for _name in ("add", "sub", "mul", "floordiv", "div", "pow"):
    _register_binary(_name, "truediv" if _name == "div" else _name)


def _register_comparison(name: str) -> None:
    @evaluator(*(k for k in _keys(name) if not (k == f"aten::{name}.Scalar")))
    def compare(ctx: ConversionContext, node: Any, a: Any, b: Any) -> Any:
        return scalars.compare(ctx, name, a, b)


for _name in scalars.COMPARISON:
    _register_comparison(_name)


@evaluator("aten::remainder.int", "aten::remainder.float", "aten::remainder.int_float", "aten::remainder.float_int")
def remainder(ctx: ConversionContext, node: Any, a: Any, b: Any) -> Any:
    """Python's a % b."""
    return scalars.modulo(ctx, a, b)


@evaluator("aten::__round_to_zero_floordiv.int", "aten::__round_to_zero_floordiv")
def round_to_zero(ctx: ConversionContext, node: Any, a: Any, b: Any) -> Any:
    """C's integer division."""
    return scalars.truncated(ctx, a, b)


@evaluator("aten::neg.int", "aten::neg.float", "aten::neg.Scalar")
def negative(ctx: ConversionContext, node: Any, a: Any) -> Any:
    """-a"""
    return scalars.binary(ctx, "sub", 0, a)


def _register_rounding(name: str, python: Callable[[Any], Any]) -> None:
    @evaluator(f"aten::{name}.int", f"aten::{name}.float", f"aten::{name}.Scalar")
    def rounding(ctx: ConversionContext, node: Any, a: Any) -> Any:
        if not isinstance(a, DynamicScalar):
            return python(a)
        if not a.dtype.is_floating_point:
            return a
        rounded = DynamicScalar(ctx.unary(name.upper(), a.tensor), a.expr * 0 + scalars.unknown(a.tensor), a.dtype)
        return scalars.convert(ctx, rounded, torch.int64)


for _name, _python in (("floor", math.floor), ("ceil", math.ceil)):
    _register_rounding(_name, _python)


def _register_conversion(name: str, dtype: torch.dtype) -> None:
    keys = {"Int": ("Scalar", "bool", "float"), "Float": ("Scalar", "int", "bool"), "Bool": ("int", "float")}[name]

    @evaluator(f"aten::{name}.Tensor", f"aten::{name}Implicit", *(f"aten::{name}.{k}" for k in keys))
    def number(ctx: ConversionContext, node: Any, value: Any) -> Any:
        return scalars.convert(ctx, item(ctx, node, value), dtype)


for _name, _dtype in (("Int", torch.int64), ("Float", torch.float32), ("Bool", torch.bool)):
    _register_conversion(_name, _dtype)


@evaluator("aten::item", "aten::ScalarImplicit")
def item(ctx: ConversionContext, node: Any, value: Any) -> Any:
    """The number in a one-element tensor; a number passes."""
    if isinstance(value, torch.Tensor):
        return value.item()
    return ctx.scalar(value) if hasattr(value, "is_shape_tensor") else value


@evaluator("aten::size")
def size(ctx: ConversionContext, node: Any, tensor: Any) -> list[Any]:
    """The sizes of all axes; a dynamic one is a DynamicScalar, never -1."""
    return ctx.sizes(tensor)


@evaluator("aten::size.int", "aten::sym_size.int")
def size_of_axis(ctx: ConversionContext, node: Any, tensor: Any, dim: Any) -> Any:
    """The size of one axis."""
    return ctx.size(tensor, static(dim, "`dim`"))


@evaluator("aten::numel")
def numel(ctx: ConversionContext, node: Any, tensor: Any) -> Any:
    """The product of the sizes."""
    return ctx._product(ctx.sizes(tensor))


@evaluator("aten::dim")
def dim(ctx: ConversionContext, node: Any, tensor: Any) -> int:
    """The rank."""
    return ctx.rank(tensor)


@evaluator("aten::is_floating_point")
def is_floating_point(ctx: ConversionContext, node: Any, tensor: Any) -> bool:
    """Whether the dtype is a floating one."""
    return ctx.dtype(tensor).is_floating_point


@evaluator("aten::is_complex")
def is_complex(ctx: ConversionContext, node: Any, tensor: Any) -> bool:
    """Networks hold no complex tensors."""
    return False


@evaluator("aten::len.Tensor")
def len_of_tensor(ctx: ConversionContext, node: Any, tensor: Any) -> Any:
    """The size of the first axis."""
    return ctx.size(tensor, 0)


@evaluator("aten::len.t", "aten::len.str", "aten::len.Dict_str")
def length(ctx: ConversionContext, node: Any, values: Any) -> int:
    """The number of elements."""
    return len(values)


@evaluator("aten::__getitem__.t", "aten::__getitem__.str", "aten::__getitem__.Dict_str", "aten::__getitem__.Dict_int")
def get_item(ctx: ConversionContext, node: Any, values: Any, key: Any) -> Any:
    """values[key]"""
    return values[static(key, "the index")]


@evaluator("aten::append.t", "aten::append.Tensor", "aten::append.int")
def append(ctx: ConversionContext, node: Any, values: list[Any], value: Any) -> list[Any]:
    """The list itself, one longer: other readers of it see the change, as in Python."""
    values.append(value)
    return values


@evaluator("aten::extend.t")
def extend(ctx: ConversionContext, node: Any, values: list[Any], more: list[Any]) -> None:
    """values.extend(more), in place."""
    values.extend(more)


@evaluator("aten::_set_item.t")
def set_item(ctx: ConversionContext, node: Any, values: list[Any], index: int, value: Any) -> list[Any]:
    """values[index] = value, in place."""
    values[static(index, "the index")] = value
    return values


@evaluator("aten::add.t", "aten::add_.t")
def add_lists(ctx: ConversionContext, node: Any, a: list[Any], b: list[Any]) -> list[Any]:
    """a + b"""
    return a + b


@evaluator("aten::mul.left_t")
def repeat_list(ctx: ConversionContext, node: Any, values: list[Any], times: Any) -> list[Any]:
    """values * times"""
    return values * static(times, "the repeat count")


@evaluator("aten::list.t", "aten::copy.t")
def copy_list(ctx: ConversionContext, node: Any, values: list[Any]) -> list[Any]:
    """A list of its own."""
    return list(values)


@evaluator("aten::slice.t")
def slice_list(ctx: ConversionContext, node: Any, values: list[Any], start: Any, end: Any, step: Any) -> list[Any]:
    """values[start:end:step]"""
    bounds = (None if v is None else static(v, "a slice bound") for v in (start, end, step))
    return values[slice(*bounds)]


@evaluator("aten::__contains__.int_list", "aten::__contains__.str_list", "aten::__contains__.float_list")
def contains(ctx: ConversionContext, node: Any, values: list[Any], value: Any) -> bool:
    """value in values"""
    return bool(static(value, "the element") in [static(v, "an element") for v in values])


@evaluator("aten::__contains__.str")
def contains_key(ctx: ConversionContext, node: Any, values: dict[Any, Any], key: Any) -> bool:
    """key in values"""
    return key in values


@evaluator("aten::eq.int_list", "aten::eq.float_list", "aten::eq.bool_list")
def equal_lists(ctx: ConversionContext, node: Any, a: list[Any], b: list[Any]) -> Any:
    """a == b, element by element"""
    if len(a) != len(b):
        return False
    return all(static(scalars.compare(ctx, "eq", x, y), "a comparison") for x, y in zip(a, b, strict=True))


@evaluator("aten::ne.int_list")
def unequal_lists(ctx: ConversionContext, node: Any, a: list[Any], b: list[Any]) -> Any:
    """a != b"""
    return not equal_lists(ctx, node, a, b)


@evaluator("aten::eq.str", "aten::eq.bool", "aten::eq.device", "aten::eq.enum")
def equal(ctx: ConversionContext, node: Any, a: Any, b: Any) -> Any:
    """a == b of static values"""
    return static(a, "an operand") == static(b, "an operand")


@evaluator("aten::ne.str", "aten::ne.bool", "aten::ne.device")
def unequal(ctx: ConversionContext, node: Any, a: Any, b: Any) -> Any:
    """a != b of static values"""
    return static(a, "an operand") != static(b, "an operand")


def _truth(ctx: ConversionContext, value: Any) -> Any:
    return scalars.convert(ctx, value, torch.bool)


def _logical(ctx: ConversionContext, layer: str, a: Any, b: Any) -> DynamicScalar:
    output = ctx.elementwise(layer, *(scalars.vector(ctx, v, torch.bool) for v in (a, b)))
    return DynamicScalar(output, scalars.unknown(output), torch.bool)


@evaluator("aten::__and__.bool", "aten::__and__.int")
def conjunction(ctx: ConversionContext, node: Any, a: Any, b: Any) -> Any:
    """a & b; a static False decides."""
    if not isinstance(a, DynamicScalar) and not isinstance(b, DynamicScalar):
        return a & b
    known, other = (a, b) if not isinstance(a, DynamicScalar) else (b, a)
    if not isinstance(known, DynamicScalar):
        return other if known else False
    return _logical(ctx, "AND", a, b)


@evaluator("aten::__or__.bool", "aten::__or__.int")
def disjunction(ctx: ConversionContext, node: Any, a: Any, b: Any) -> Any:
    """a | b; a static True decides."""
    if not isinstance(a, DynamicScalar) and not isinstance(b, DynamicScalar):
        return a | b
    known, other = (a, b) if not isinstance(a, DynamicScalar) else (b, a)
    if not isinstance(known, DynamicScalar):
        return True if known else other
    return _logical(ctx, "OR", a, b)


@evaluator("aten::__xor__.bool", "aten::__xor__.int")
def exclusive_or(ctx: ConversionContext, node: Any, a: Any, b: Any) -> Any:
    """a ^ b"""
    if not isinstance(a, DynamicScalar) and not isinstance(b, DynamicScalar):
        return a ^ b
    return _logical(ctx, "XOR", a, b)


@evaluator("aten::__not__")
def negation(ctx: ConversionContext, node: Any, a: Any) -> Any:
    """not a"""
    if not isinstance(a, DynamicScalar):
        return not a
    output = ctx.unary("NOT", _truth(ctx, a).tensor)
    return DynamicScalar(output, scalars.unknown(output), torch.bool)


@evaluator("aten::__is__")
def identical(ctx: ConversionContext, node: Any, a: Any, b: Any) -> bool:
    """`is`, which TorchScript uses to compare with None."""
    return a is b


@evaluator("aten::__isnot__")
def not_identical(ctx: ConversionContext, node: Any, a: Any, b: Any) -> bool:
    """`is not`"""
    return a is not b


@evaluator("aten::format")
def format_text(ctx: ConversionContext, node: Any, text: str, *values: Any) -> str:
    """str.format; what is not static shows as its type's name."""
    shown = [v if isinstance(v, str | int | float | bool | list) else type(v).__name__ for v in values]
    return text.format(*shown)


@evaluator("aten::warn", "prim::Print")
def silent(ctx: ConversionContext, node: Any, *_: Any) -> None:
    """Nothing for an engine to do."""


@evaluator("aten::__range_length")
def range_length(ctx: ConversionContext, node: Any, low: Any, high: Any, step: Any) -> Any:
    """The number of elements of range(low, high, step)."""
    if not any(isinstance(v, DynamicScalar) for v in (low, high, step)):
        return len(range(low, high, step))
    if not isinstance(step, int) or step <= 0:
        raise Unconvertible("a range of dynamic length needs a positive static step")
    span = scalars.binary(ctx, "add", scalars.binary(ctx, "sub", high, low), step - 1)
    return scalars.binary(ctx, "max", scalars.binary(ctx, "floordiv", span, step), 0)


@evaluator("aten::__derive_index")
def derive_index(ctx: ConversionContext, node: Any, index: Any, start: Any, step: Any) -> Any:
    """start + index * step"""
    return scalars.binary(ctx, "add", start, scalars.binary(ctx, "mul", index, step))


@evaluator("aten::sqrt.int", "aten::sqrt.float", "aten::sqrt.Scalar")
def square_root(ctx: ConversionContext, node: Any, a: Any) -> Any:
    """math.sqrt"""
    if not isinstance(a, DynamicScalar):
        return math.sqrt(a)
    output = ctx.unary("SQRT", scalars.vector(ctx, a, torch.float32))
    return DynamicScalar(output, scalars.unknown(output), torch.float32)
