"""Python functions as TorchScript graphs.

`torch.jit.script` needs one type for each argument, and PyTorch's `Scalar` has two. So the
function's source is read, `Number` is replaced by the requested type, and functions and constants
of its module are inlined.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch

C: Any = torch._C  # torch's stubs lack most of its passes


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters, in their order."""
    return function.__code__.co_varnames[: function.__code__.co_argcount]


@lru_cache(maxsize=1024)
def graph(
    function: Callable[..., Any], numbers: tuple[str, ...] = ()
) -> torch._C.Graph:
    """The inlined graph of a function; `numbers` are the types of its `Number` parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript's deprecation
        # must outlive its functions, which the graph refers to until it is inlined
        unit = torch.jit.CompilationUnit(source(function, numbers))
    compiled = getattr(unit, function.__name__).graph.copy()
    C._jit_pass_inline(compiled)
    C._jit_pass_erase_shape_information(compiled)
    return compiled  # type: ignore[no-any-return]


def source(function: Callable[..., Any], numbers: tuple[str, ...] = ()) -> str:
    """The TorchScript text of a function, after that of the functions that it calls."""
    texts = []
    for called in dict.fromkeys(_with_called(function)):
        texts.append(_text(called, numbers if called is function else ()))
    return "\n\n".join(texts) + "\n"


def _with_called(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    body = (
        node for statement in _definition(function).body for node in ast.walk(statement)
    )
    for name in (node.id for node in body if isinstance(node, ast.Name)):
        called = _global(function, name)
        if inspect.isfunction(called) and called is not function:
            yield from _with_called(called)
    yield function


def _global(function: Any, name: str) -> Any:
    return (
        None
        if name in function.__code__.co_varnames
        else function.__globals__.get(name)
    )


@lru_cache(maxsize=1024)
def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError(f"{function.__qualname__} is not a plain function")
    return definition


def _text(function: Callable[..., Any], numbers: tuple[str, ...]) -> str:
    definition = _definition(function)
    types = iter(numbers)
    arguments = [
        ast.arg(argument.arg, _type(argument.annotation, types))
        for argument in definition.args.args
    ]
    body = [
        _Constants(function).visit(ast.parse(ast.unparse(statement)).body[0])
        for statement in definition.body
        if not _is_docstring(statement)
    ]
    head = ", ".join(ast.unparse(argument) for argument in arguments)
    lines = "\n".join(
        ast.unparse(ast.fix_missing_locations(statement)) for statement in body
    )
    return f"def {function.__name__}({head}):\n{textwrap.indent(lines, '    ')}"


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _type(annotation: ast.expr | None, numbers: Iterator[str]) -> ast.expr:
    """TorchScript's type for an annotation: a dtype is an int there."""
    text = ast.unparse(annotation) if annotation else "Tensor"
    if text == "Number":
        text = next(numbers)
    return ast.parse(text.replace("torch.dtype", "int"), mode="eval").body


class _Constants(ast.NodeTransformer):
    """Inlines the numbers and strings that a function uses from its module and from `math`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = _global(self.function, node.id)
        if isinstance(value, bool | int | float | str):
            return _literal(value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "math":
            return _literal(getattr(math, node.attr))
        return self.generic_visit(node)


def _literal(value: object) -> ast.expr:
    finite = not isinstance(value, float) or math.isfinite(value)
    return ast.parse(repr(value) if finite else f"float('{value}')", mode="eval").body
