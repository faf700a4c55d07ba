"""Operators on lists and dictionaries, evaluated on Python containers whose elements may be
tensors.

A list that a graph changes in place is one Python list for all its users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builder.conversion import scalars
from builder.conversion.arguments import static
from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.facts import is_any_tensor
from builder.conversion.lists import RecentElements, element
from builder.conversion.overloads import of_dict, of_list, overloads
from builder.conversion.registry import evaluator
from builder.graph_types import Node


def _delete(values: Any, key: Any) -> None:
    del values[key]


def _set(values: list[int], key: int, value: int) -> Any:
    values[key] = value
    return values


def _append(values: list[Any], value: object) -> list[Any]:
    values.append(value)
    return values


def _extend(values: list[Any], more: list[Any]) -> list[Any]:
    values.extend(more)
    return values


LISTS: dict[str, Callable[..., Any]] = {
    "len": len,
    "append": _append,
    "extend": _extend,
    "add": lambda a, b: a + b,
    "add_": _extend,
    "list": list,
    "copy": list,
    "clear": list.clear,
    "reverse": list.reverse,
    "insert": list.insert,
    "pop": list.pop,
    "Delete": _delete,
    "_set_item": _set,
}
"""Operators whose positions must be static, but not the elements."""

POSITIONS = frozenset(["insert", "pop", "Delete", "_set_item"])

DICTIONARIES: dict[str, Callable[..., Any]] = {
    "len": len,
    "__getitem__": lambda values, key: values[key],
    "__contains__": lambda values, key: key in values,
    "get": dict.get,
    "keys": list,
    "values": lambda values: list(values.values()),
    "items": lambda values: [list(pair) for pair in values.items()],
    "copy": dict,
    "dict": dict,
    "clear": dict.clear,
    "pop": dict.pop,
    "setdefault": dict.setdefault,
    "update": dict.update,
    "Delete": _delete,
    "_set_item": _set,
}


def _register(
    keys: list[str], work: Callable[..., Any], *, static_key: bool = False
) -> None:
    @evaluator(*keys)
    def container(ctx: ConversionContext, values: object, *arguments: object) -> Any:
        if static_key and arguments:
            arguments = (static(arguments[0], "the position or key"), *arguments[1:])
        return work(values, *arguments)


for _name, _work in LISTS.items():
    _register(of_list(f"aten::{_name}"), _work, static_key=_name in POSITIONS)
for _name, _work in DICTIONARIES.items():
    _register(of_dict(f"aten::{_name}"), _work, static_key=True)
_register(
    overloads(
        "aten::dict",
        lambda types: types[:1] != [] and types[0].startswith("List[Tuple"),
    ),
    dict,
)
_register(overloads("aten::len", lambda types: types == ["str"]), len)


@evaluator("aten::dict")
def empty_dict(ctx: ConversionContext) -> dict[Any, Any]:
    """{}"""
    return {}


@evaluator("aten::__getitem__.t", "aten::__getitem__.str", "aten::select.t")
def get_item(ctx: ConversionContext, values: list[Any], index: Size) -> Any:
    """values[index] of a list or a string"""
    if isinstance(values, RecentElements):
        return values.at(index)
    is_known = not isinstance(index, DynamicScalar)
    if is_known or not values or not all(map(is_any_tensor, values)):
        return values[static(index, "the index")]
    return element(ctx, index, len(values), values)


@evaluator("aten::mul.left_t", "aten::mul_.t", "aten::mul.right_")
def repeat_list(ctx: ConversionContext, node: Node, a: list[Any], b: Size) -> list[Any]:
    """values * times, in either order; in place for *="""
    values, times = (a, b) if isinstance(a, list) else (b, a)
    repeated = values * static(times, "the repeat count")
    if node.kind() == "aten::mul_":
        values[:] = repeated
        return values
    return repeated  # type: ignore[no-any-return]


@evaluator("aten::slice.t", "aten::slice.str")
def slice_list(
    ctx: ConversionContext,
    values: list[Any],
    start: int | None,
    end: int | None,
    step: int,
) -> Any:
    """values[start:end:step]"""
    bounds = (
        None if value is None else static(value, "a slice bound")
        for value in (start, end, step)
    )
    return values[slice(*bounds)]


@evaluator(
    "aten::__contains__.int_list",
    "aten::__contains__.str_list",
    "aten::__contains__.float_list",
)
def contains(ctx: ConversionContext, values: list[Any], value: object) -> bool:
    """value in values"""
    return bool(static(value, "the element") in static(values, "an element"))


_COMPARED = ("List[int]", "List[float]", "List[bool]", "List[str]")


@evaluator(*overloads("aten::eq", lambda types: types[0] in _COMPARED))
def equal_lists(ctx: ConversionContext, a: list[Any], b: list[Any]) -> Any:
    """a == b, element by element"""
    if len(a) != len(b):
        return False
    return all(
        static(scalars.compare(ctx, "eq", first, second), "a comparison")
        for first, second in zip(a, b, strict=True)
    )


@evaluator(*overloads("aten::ne", lambda types: types[0] in _COMPARED))
def unequal_lists(ctx: ConversionContext, a: list[Any], b: list[Any]) -> Any:
    """a != b"""
    return not equal_lists(ctx, a, b)


def _fold(operation: str) -> Callable[..., Any]:
    def fold(ctx: ConversionContext, values: list[Size]) -> Any:
        result = values[0] if values else 0
        for value in values[1:]:
            result = ctx.arithmetic(operation, result, value)
        return result

    return fold


_NUMBER_LISTS = (["List[int]"], ["List[float]"], ["List[bool]"])
for _name, _operation in (
    ("prim::min", "min"),
    ("prim::max", "max"),
    ("aten::sum", "add"),
):
    evaluator(*overloads(_name, lambda types: types in _NUMBER_LISTS))(
        _fold(_operation)
    )
