"""Which function converts which operator: one entry a schema, with its capability beside it as
data.

    @converter("aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor")
    def hardtanh(ctx, x, min_val, max_val): ...

A converter takes the arguments that it uses, by the schema's names (signatures.py). The
schema string is the key, and its types unwrap the arguments: `Tensor` arrives as an ITensor (a
constant becomes a layer), `int`, `float`, `bool`, `str` and lists of them as Python values. What is
declared differently is data too: `constants` names tensors that arrive as torch.Tensor where they
are static; `dynamic` names numbers that may arrive as a DynamicScalar; `packed`, tensors that may
be a part of a packed sequence (packing.py); `when` holds predicates that look at the bound
arguments and return None or the reason against. A node whose inputs are all static is computed by
torch, unless its converter says `folds=False`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion.signatures import Signature, signature, takes_node

Predicate = Callable[[Any, SimpleNamespace], "str | None"]
"""(context, the bound arguments by name) -> None if the converter can, else why it cannot."""


@dataclass(frozen=True)
class Converter:
    """One operator's converter: `key` is `aten::name.overload`, the rest is what the decorator was
    told.
    """

    key: str
    schema: torch._C.FunctionSchema
    build: Callable[..., Any]
    when: tuple[Predicate, ...]
    constants: frozenset[str]
    dynamic: frozenset[str]
    note: str
    folds: bool = True
    packed: frozenset[str] = frozenset()

    @cached_property
    def signature(self) -> Signature:
        """Which arguments `build` takes."""
        return signature(self.build, tuple(a.name for a in self.schema.arguments), self.key)

    @cached_property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """Each argument's name, and how its value is unwrapped: `tensor`, `tensors`, `dynamic` or
        `static`.
        """
        return tuple((a.name, self._kind(a)) for a in self.schema.arguments)

    def _kind(self, argument: Any) -> str:
        kind = str(argument.type).replace("Optional[", "").rstrip("]")
        if kind in ("Tensor", "List[Tensor"):
            return "tensor" if kind == "Tensor" else "tensors"
        return "dynamic" if argument.name in self.dynamic else "static"

    @cached_property
    def operator(self) -> str:
        """The operator's name without namespace and overload: `linear`."""
        return self.schema.name.rpartition("::")[2]


CONVERTERS: dict[str, Converter] = {}
EVALUATORS: dict[str, Callable[..., Any]] = {}
WITH_NODE: set[str] = set()
"""The keys of the evaluators that take the node."""


def key_of(schema: str) -> str:
    """`aten::add.Tensor` of the schema text `aten::add.Tensor(Tensor self, ...) -> Tensor`."""
    return schema[: schema.index("(")]


def converter(
    *schemas: str,
    when: Predicate | tuple[Predicate, ...] = (),
    constants: tuple[str, ...] = (),
    dynamic: tuple[str, ...] = (),
    packed: tuple[str, ...] = (),
    note: str = "",
    folds: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function `(ctx, *arguments) -> ITensor | ILayer | tuple` for the schemas given.

    `note` is printed in docs/operators.md. Raises ValueError where a schema is registered twice,
    and where the function takes an argument that a schema lacks.
    """

    def register(build: Callable[..., Any]) -> Callable[..., Any]:
        predicates = when if isinstance(when, tuple) else (when,)
        for text in schemas:
            key = key_of(text)
            if key in CONVERTERS:
                raise ValueError(f"{key} has two converters")
            schema = torch._C.parse_schema(text)
            named = frozenset(constants), frozenset(dynamic)
            entry = Converter(
                key, schema, build, predicates, *named, note, folds, frozenset(packed)
            )
            _ = entry.signature  # raises where it does not fit
            CONVERTERS[key] = entry
        return build

    return register


def evaluator(*keys: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function `(ctx, *values) -> value` that works on static values, DynamicScalars and
    lists; `(ctx, node, *values)` where it needs the node.

    The key is a node kind (`prim::ListConstruct`) or a schema's `aten::size.int`; values arrive as
    they are.
    """

    def register(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        for key in keys:
            if key in EVALUATORS:
                raise ValueError(f"{key} has two evaluators")
            EVALUATORS[key] = evaluate
            if takes_node(evaluate):
                WITH_NODE.add(key)
        return evaluate

    return register
