"""Checks of a user's converters and evaluators against torch's operators, and their source
locations.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

import torch

from builder.engine import ITensor
from builder.errors import ConversionError
from builder.graph_types import Node

Function = Callable[..., Any]

NAMESPACES = ("aten", "prim", "prims", "quantized")
"""torch's namespaces. Operators of other namespaces may come from a library that is loaded
later.
"""


def is_users(function: Function) -> bool:
    """Whether the function is defined outside of trt-build."""
    return (getattr(function, "__module__", None) or "").partition(".")[0] != "builder"


def location(function: Function) -> str:
    """`halve (/models/plugin.py:12)`."""
    function = defined(function)
    code = getattr(function, "__code__", None)
    at = ""
    if code:
        at = f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{getattr(function, '__name__', function)}{at}"


def claim(
    table: Mapping[str, Any], key: str, function: Function, kind: str, override: bool
) -> None:
    """Raise ValueError if the table has an entry for the key, unless the new one replaces it."""
    if key in table and not override:
        hint = "; override=True replaces it" if is_users(function) else ""
        raise ValueError(f"{location(function)}: {key} has {kind} already{hint}")


def check_schema(schema: torch._C.FunctionSchema, key: str, function: Function) -> None:
    """Raise ValueError if torch's operator `key` has other arguments, defaults or results, or does
    not exist. An operator of another namespace is checked when it is converted.
    """
    kind, _, overload = key.partition(".")
    overloads = torch._C._jit_get_schemas_for_operator(kind)
    if not overloads and not _is_of_torch(kind):
        return
    for overload_schema in overloads:
        if overload_schema.overload_name == overload:
            _compare(schema, overload_schema, function)
            return
    names = [
        ".".join(filter(None, (overload_schema.name, overload_schema.overload_name)))
        for overload_schema in overloads
    ] or _close(kind)
    hint = f"; it has {', '.join(names)}" if names else ""
    raise ValueError(f"{location(function)}: torch has no operator {key}{hint}")


def check_node(schema: torch._C.FunctionSchema, node: Node, function: Function) -> None:
    """Raise ConversionError if the node's operator has another schema. Its library was not loaded
    when the function was registered.
    """
    try:
        _compare(schema, torch._C.parse_schema(node.schema()), function)
    except ValueError as mismatch:
        raise ConversionError(
            str(mismatch), fix="correct the schema in the plugin"
        ) from mismatch


def check_parameters(key: str, function: Function, takes_node: bool) -> None:
    """Raise ValueError if the number of an evaluator's parameters differs from torch's operator, or
    the operator does not exist.
    """
    kind, _, overload = key.partition(".")
    overloads = torch._C._jit_get_schemas_for_operator(kind)
    matching = [schema for schema in overloads if schema.overload_name == overload]
    if not matching:
        has_no_schema = kind.startswith("prim::") and not overload
        is_of_a_library = not overloads and not _is_of_torch(kind)
        if has_no_schema or is_of_a_library:
            return
        raise ValueError(f"{location(function)}: torch has no operator {key}")
    count = 1 + takes_node + len(matching[0].arguments)
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as mismatch:
        raise ValueError(
            f"{location(function)} is called with {count} arguments: ctx,"
            f"{' node,' if takes_node else ''} and the values of {matching[0]}"
        ) from mismatch


def check_results(
    results: ITensor | list[ITensor], node: Node, function: Function
) -> None:
    """Raise ConversionError if a converter does not return a value for each output of the node."""
    count = node.outputsSize()
    if count == 1:
        problem = "returned None" if results is None else ""
    elif not isinstance(results, tuple | list):
        problem = (
            f"returned {'None' if results is None else 'one value'} for {count} outputs"
        )
    else:
        missing = len(results) != count
        problem = (
            f"returned {len(results)} values for {count} outputs" if missing else ""
        )
    if problem and count:
        raise ConversionError(
            f"the converter {location(function)} of {node.kind()} {problem}",
            fix="return a layer, or its output tensor, for each output of the operator",
        )


def failure(function: Function, node: Node, error: Exception) -> str:
    """The message for an error in a user's function: the function, and the failed line in its
    file.
    """
    file = getattr(getattr(defined(function), "__code__", None), "co_filename", "")
    lines = [line for name, line in _frames(error.__traceback__) if name == file]
    at = ""
    if lines:
        at = f" at {Path(file).name}:{lines[-1]}"
    return f"{location(function)}, for {node.kind()}, failed{at}: {type(error).__name__}: {error}"


def defined(function: Function) -> Function:
    """The function that is defined in a file: for a converter of a decomposition, the
    decomposition.
    """
    return getattr(function, "definition", function)


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    yield from ((frame.f_code.co_filename, line) for frame, line in walk_tb(trace))


def _compare(
    schema: torch._C.FunctionSchema,
    torch_schema: torch._C.FunctionSchema,
    function: Function,
) -> None:
    if _shape(schema) != _shape(torch_schema):
        raise ValueError(
            f"{location(function)}: the schema differs from torch's operator, which is"
            f" {torch_schema}"
        )


def _shape(schema: torch._C.FunctionSchema) -> tuple[Any, ...]:
    """The parts of a schema that must be equal. SymInt counts as int."""
    arguments = [
        (
            argument.name,
            _type(argument),
            argument.has_default_value(),
            _default(argument),
        )
        for argument in schema.arguments
    ]
    return arguments, [_type(returned) for returned in schema.returns]


def _type(argument: torch._C.Argument) -> str:
    return str(argument.type).replace("SymInt", "int")


def _default(argument: torch._C.Argument) -> str:
    if argument.has_default_value():
        return repr(argument.default_value)
    return ""


def _is_of_torch(kind: str) -> bool:
    return kind.partition("::")[0] in NAMESPACES


def _close(kind: str) -> list[str]:
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    return difflib.get_close_matches(kind, names, 3)
