"""Binding of a converter's parameters to the arguments of a schema.

    def hardtanh(ctx, x, min_val, max_val): ...

After `ctx` comes `node`, if the function has this parameter. `x` is the schema's first argument.
All others bind by the schema's names, in any order and as few as the function uses. Parameters
before a `/` bind by position, for schemas with different names; with a `*rest`, all do. A parameter
with a default may be missing in the schema.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.conversion.extension import location
from builder.graph_types import Node

if TYPE_CHECKING:
    from builder.conversion.context import ConversionContext


_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Signature:
    """The arguments that a function takes, by the schema's names, in the function's order."""

    takes_node: bool
    positional: tuple[str, ...]
    keywords: tuple[tuple[str, str], ...]
    """Keyword arguments by parameter, for parameters after one that the schema does not have."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """The annotations of the parameters, by the schema's names."""

    def accepting(self, *types: str) -> frozenset[str]:
        """The arguments of parameters whose annotations name one of these types."""
        return frozenset(
            name
            for name, annotation in self.annotations.items()
            if not set(types).isdisjoint(_WORD.findall(annotation))
        )

    def call(
        self,
        function: Callable[..., Any],
        ctx: ConversionContext,
        node: Node,
        arguments: Mapping[str, Any],
    ) -> Any:
        """The function's result for these arguments."""
        first = (ctx, node) if self.takes_node else (ctx,)
        values = [arguments[name] for name in self.positional]
        if not self.keywords:
            return function(*first, *values)
        keywords = {parameter: arguments[name] for parameter, name in self.keywords}
        return function(*first, *values, **keywords)


def signature(
    function: Callable[..., Any], names: tuple[str, ...], key: str
) -> Signature:
    """The signature of `function` for the arguments `names` of the operator `key`. Raises
    ValueError for a parameter that the schema does not have.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].name != "ctx":
        raise ValueError(f"{_name(function)}: the first parameter must be `ctx`")
    with_node = takes_node(function)
    parameters = parameters[1 + with_node :]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return _by_position(parameters, names, with_node=with_node)
    annotations: dict[str, str] = {}
    positional: list[str] = []
    keywords: list[tuple[str, str]] = []
    for index, parameter in enumerate(parameters):
        by_position = (
            parameter.kind is parameter.POSITIONAL_ONLY or parameter.name == "x"
        )
        matching = _named(parameter.name, names)
        if by_position:
            matching = names[index : index + 1]
        annotations |= dict.fromkeys(matching, str(parameter.annotation))
        if matching and not keywords and len(positional) == index:
            positional += matching
        elif matching:
            keywords.append((parameter.name, matching[0]))
        elif parameter.default is parameter.empty:
            raise ValueError(
                f"{_name(function)} takes `{parameter.name}`, but {key} has no such argument"
                f" (it has {', '.join(names) or 'none'})"
            )
    return Signature(with_node, tuple(positional), tuple(keywords), annotations)


def _by_position(
    parameters: list[inspect.Parameter], names: tuple[str, ...], *, with_node: bool
) -> Signature:
    """The signature of a function that takes all arguments, the rest of them in a `*rest`."""
    each = itertools.chain(parameters, itertools.repeat(parameters[-1]))
    pairs = zip(names, each, strict=False)
    annotations = {name: str(parameter.annotation) for name, parameter in pairs}
    return Signature(with_node, names, (), annotations)


def takes_node(function: Callable[..., Any]) -> bool:
    """Whether the second parameter, after `ctx`, is the node."""
    return list(inspect.signature(function).parameters)[1:2] == ["node"]


def _named(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return (name,) if name in names else ()


def _name(function: Callable[..., Any]) -> str:
    return f"the converter {location(function)}"
