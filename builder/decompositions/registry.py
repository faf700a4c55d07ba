"""The table of decompositions: one entry for each operator schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from builder.decompositions import torchscript

Number = float
"""The annotation of a `Scalar` argument: int or float, as the node that is replaced has it."""

Condition = Callable[[SimpleNamespace], "str | None"]
"""The arguments by name -> None if the formula holds for them, else why it does not.

While lowering, an argument that is not a constant is the graph's value.
"""

Function = TypeVar("Function", bound=Callable[..., Any])


def key_of(schema: str) -> str:
    """`aten::add.Tensor` of a schema's text, or of itself."""
    return schema.partition("(")[0]


ABSENT: set[str] = set()
"""The keys whose operators this version of torch lacks."""


def operator_schema(schema: str) -> torch._C.FunctionSchema | None:
    """The schema of a text, or torch's schema of a key such as `aten::add.Tensor`; None if this
    torch lacks the operator.
    """
    if "(" in schema:
        return torch._C.parse_schema(schema)
    operator, _, overload = schema.partition(".")
    try:
        return torch._C._get_schema(operator, overload)
    except RuntimeError:
        ABSENT.add(schema)
        return None


def _location(function: Callable[..., Any]) -> str:
    """`clip (/models/plugin.py:12)`."""
    code = getattr(function, "__code__", None)
    at = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"{getattr(function, '__name__', function)}{at}"


@dataclass(frozen=True)
class Decomposition:
    """An operator, and the function that computes the same with operators that have converters.

    `schema` is its key or the text of its schema. `note` is printed in docs/operators.md.
    """

    schema: str
    function: Callable[..., Any]
    when: Condition | None = None
    note: str = ""

    def __post_init__(self) -> None:
        parameters = torchscript.parameters(self.function)
        if parameters != self.names:
            raise ValueError(
                f"{_location(self.function)}: the decomposition of {self.key} takes"
                f" ({', '.join(parameters)}), its schema has ({', '.join(self.names)})"
            )

    @property
    def key(self) -> str:
        """The operator with its overload: `aten::log_softmax.int`."""
        return key_of(self.schema)

    @property
    def kind(self) -> str:
        """The kind of its nodes, which is the operator without its overload."""
        return self.key.partition(".")[0]

    @cached_property
    def parsed(self) -> torch._C.FunctionSchema:
        """The schema that torch has of it, or parses."""
        parsed = operator_schema(self.schema)
        assert parsed, f"torch has no operator {self.schema}"
        return parsed

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its arguments."""
        return tuple(argument.name for argument in self.parsed.arguments)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The names of the arguments that are tensors, or lists of them."""
        return tuple(a.name for a in self.parsed.arguments if "Tensor" in str(a.type))

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The positions of the `Scalar` arguments."""
        arguments = enumerate(self.parsed.arguments)
        return tuple(index for index, a in arguments if "number" in str(a.type))

    def graph(self, numbers: tuple[str, ...]) -> torch._C.Graph:
        """The formula's graph without calls; `numbers` are the types, `int` or `float`, of its
        `Scalar` arguments. The graph is shared: copy it before you change it.
        """
        return torchscript.graph(self.function, numbers)


DECOMPOSITIONS: dict[str, Decomposition] = {}
"""Every decomposition, by its key."""


def decomposition(
    *keys: str, when: Condition | None = None, note: str = ""
) -> Callable[[Function], Function]:
    """Register a function as the definition of operators; those that this torch lacks are
    ignored.

    Its parameters have the names of the schema's arguments. Raises ValueError where they do not,
    and where an operator has a definition already.
    """

    def register(function: Function) -> Function:
        for key in filter(operator_schema, keys):
            entry = Decomposition(key, function, when, note)
            if entry.key in DECOMPOSITIONS:
                raise ValueError(f"{entry.key} has two decompositions")
            DECOMPOSITIONS[entry.key] = entry
        return function

    return register
