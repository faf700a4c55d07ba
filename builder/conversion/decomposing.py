"""Converters for the operators of `builder.decompositions`.

The decomposition's graph is walked with the operator's values, so that branches on settings are
resolved and static tensors stay static. An operator in it that cannot be converted is the reason of
the refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from builder.conversion import extension, operators
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.network import LayerNames
from builder.conversion.registry import CONVERTERS, Predicate, converter, key_of
from builder.conversion.values import Operand, Scalar
from builder.conversion.walker import GraphWalker, Refusal
from builder.decompositions import DECOMPOSITIONS, Condition, Decomposition
from builder.errors import ConversionError
from builder.graph_types import Node

Function = TypeVar("Function", bound=Callable[..., Any])


class FormulaBackend(operators.Operators):
    """Converts the nodes of a decomposition for one node of the model. Layer names and refusals
    refer to that node.
    """

    def __init__(self, ctx: ConversionContext) -> None:
        super().__init__(ctx, ctx.walker.backend.policy)
        self.node = ctx.node

    def layer_name(self, node: Node) -> str:
        """The name within the decomposition."""
        return LayerNames().peek(node)

    def refuse(self, node: Node, refusal: Refusal) -> list[Any]:
        """Refuse the whole decomposition."""
        if isinstance(refusal, ConversionError):
            raise refusal
        raise Unconvertible(
            f"its decomposition has {node.kind()}: {refusal.reason}", refusal.fix
        )

    def finish(self, node: Node, results: list[Any], first: int) -> None:
        """Follow the sizes only, because the names of a decomposition's values repeat."""
        self.follow_sizes(first)
        self.ctx.node = self.node  # warnings state the model's line


def decomposition(
    *schemas: str, when: Condition | None = None, note: str = "", override: bool = False
) -> Callable[[Function], Function]:
    """Register a user's function as the decomposition of operators.

    TorchScript compiles it, and its graph is converted instead of the operator. Its parameters have
    the names of the schema's arguments. `when` takes the arguments by name and returns None, or the
    reason why the function does not apply. `override` replaces an existing converter or
    decomposition. Raises ValueError if the names differ, the schema is not that of torch's
    operator, or the operator has a converter and `override` is False.
    """

    def add(function: Function) -> Function:
        for schema in schemas:
            key = key_of(schema)
            extension.claim(CONVERTERS, key, function, "a converter", override)
            entry = Decomposition(schema, function, when, note)
            extension.check_schema(entry.parsed, key, function)
            DECOMPOSITIONS[key] = entry
            register(entry, override=override)
        return function

    return add


def register(entry: Decomposition, *, override: bool = False) -> None:
    """Register the converter that walks a decomposition. docs/operators.md lists it under the
    decomposition's module.
    """

    def build(ctx: ConversionContext, *values: Operand) -> Any:
        return walked(ctx, entry, values)

    build.__doc__ = entry.function.__doc__
    build.definition = entry.function  # type: ignore[attr-defined]
    build.__module__ = entry.function.__module__
    numbers = tuple(name for name in entry.names if name not in entry.tensors)
    converter(
        entry.schema,
        constants=entry.tensors,
        dynamic=numbers,
        note=entry.note,
        when=_predicate(entry.when) if entry.when else (),
        override=override,
    )(build)


def _predicate(condition: Condition) -> Predicate:
    def holds(ctx: ConversionContext, arguments: SimpleNamespace) -> str | None:
        return condition(arguments)

    holds.__doc__ = condition.__doc__
    return holds


def walked(
    ctx: ConversionContext, entry: Decomposition, values: tuple[Any, ...]
) -> Any:
    """The results of the decomposition for these values."""
    numbers = (values[index] for index in entry.numbers)
    graph: Any = entry.graph(
        tuple("float" if _is_float(value) else "int" for value in numbers)
    )
    saved = ctx.values
    node = ctx.node
    walker = ctx.walker
    names = [value.debugName() for value in graph.inputs()]
    ctx.values = dict(zip(names, values, strict=True))
    try:
        (result,) = GraphWalker(ctx, FormulaBackend(ctx)).walk(graph)
    finally:
        ctx.values = saved
        ctx.node = node
        ctx.walker = walker
    return result


def _is_float(value: Scalar) -> bool:
    if isinstance(value, DynamicScalar):
        return value.dtype.is_floating_point
    return isinstance(value, float)


for _entry in DECOMPOSITIONS.values():
    register(_entry)
