"""The registry of converters and evaluators: one entry for each schema, with its capability as
data.

    @converter("aten::hardtanh")
    def hardtanh(ctx, x, min_val, max_val): ...

A converter takes the arguments that it uses, by the names of torch's schema (signatures.py), which
is looked up by the key. A user's converter has the schema's text, which must be torch's. The
schema's types unwrap the arguments: `Tensor` arrives as an ITensor (a
constant becomes a layer), `int`, `float`, `bool`, `str` and lists of them as Python values. The
annotations of trt-build's own converters declare what arrives differently: a parameter of type
`Tensor` or `Operand` gets a static tensor as torch.Tensor, and one of type `Size`, `Scalar` or
`Operand` may get a DynamicScalar. Other functions, and parameters of type Any, are declared by
`constants` (tensors) and `dynamic` (numbers). `packed` names tensors that may be a part of a packed
sequence (packing.py); `when` holds predicates that look at the bound arguments and return None or
the reason against. A node whose inputs are all static is computed by torch, unless its converter
has `folds=False`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from builder.conversion import extension
from builder.conversion.signatures import Signature, signature, takes_node
from builder.decompositions import operator_schema
from builder.graph_types import Argument, Node
from builder.lowering import ir

Function = TypeVar("Function", bound=Callable[..., Any])

Predicate = Callable[[Any, SimpleNamespace], "str | None"]
"""(context, the bound arguments by name) -> None if the converter supports them, else the
reason.
"""


@dataclass(frozen=True)
class Converter:
    """One operator's converter: `key` is `aten::name.overload`, the rest are the decorator's
    arguments.
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

    @property
    def is_users(self) -> bool:
        """Whether it is defined outside trt-build."""
        return extension.is_users(self.build)

    @cached_property
    def signature(self) -> Signature:
        """The arguments that `build` takes. Raises ValueError for one that the schema lacks."""
        names = tuple(argument.name for argument in self.schema.arguments)
        return signature(self.build, names, self.key)

    @cached_property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """Each argument's name, and the type of its value: `tensor`, `tensors`, `dynamic` or
        `static`.
        """
        return tuple(
            (argument.name, self._kind(argument)) for argument in self.schema.arguments
        )

    def _kind(self, argument: Argument | torch._C.Argument) -> str:
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
"""The keys of the evaluators that receive the node."""


def key_of(schema: str) -> str:
    """`aten::add.Tensor` of the schema text `aten::add.Tensor(Tensor self, ...) -> Tensor`. Raises
    ValueError for other text.
    """
    key, parenthesis, _ = schema.partition("(")
    if not parenthesis:
        raise ValueError(
            f"{schema!r} is not a schema: write it with all arguments, such as"
            f" `{key}(Tensor self) -> Tensor`"
        )
    return key


NO_SCHEMA = "(no schema)"


def key_of_node(node: Node) -> str:
    """The registry's key: the schema's name and overload, or the kind of a node without a
    schema.
    """
    schema = node.schema()
    if schema == NO_SCHEMA:
        return str(node.kind())
    return key_of(schema)


def for_each(*rows: Any) -> Callable[[Function], Function]:
    """Call a function once for each row: an argument, or a tuple of all arguments.

    It decorates functions that register one operator of a family.
    """

    def register(function: Function) -> Function:
        for row in rows:
            arguments = row if isinstance(row, tuple) else (row,)
            function(*arguments)
        return function

    return register


def converter(
    *schemas: str,
    when: Predicate | tuple[Predicate, ...] = (),
    constants: tuple[str, ...] = (),
    dynamic: tuple[str, ...] = (),
    packed: tuple[str, ...] = (),
    note: str = "",
    folds: bool = True,
    override: bool = False,
) -> Callable[[Function], Function]:
    """Register a function `(ctx, *arguments) -> ITensor | ILayer | tuple` for the schemas, or, in
    trt-build, for keys such as `aten::add.Tensor`. Keys that this torch lacks are ignored.

    `note` is printed in docs/operators.md. `override` replaces an existing converter. Lowering does
    not decompose an operator with a user's converter. Raises ValueError if a schema is registered
    twice or is not that of torch's operator, or if the function takes an argument that is not in a
    schema.
    """

    entry_of = partial(
        Converter,
        when=when if isinstance(when, tuple) else (when,),
        constants=frozenset(constants),
        dynamic=frozenset(dynamic),
        note=note,
        folds=folds,
        packed=frozenset(packed),
    )

    def register(build: Function) -> Function:
        for text in schemas:
            key = key_of(text) if extension.is_users(build) else text.partition("(")[0]
            extension.claim(CONVERTERS, key, build, "a converter", override)
            schema = operator_schema(text)
            if schema is None:
                continue
            entry = entry_of(key, schema, build)
            _add(entry if entry.is_users else _as_annotated(entry))
        return build

    return register


def _as_annotated(entry: Converter) -> Converter:
    """The converter with the constants and dynamic numbers that its annotations declare."""
    arguments = entry.schema.arguments
    tensors = {
        argument.name for argument in arguments if "Tensor" in str(argument.type)
    }
    static = entry.signature.accepting("Tensor", "Operand") & tensors
    numbers = entry.signature.accepting("Size", "Scalar", "Operand") - tensors
    return replace(
        entry, constants=entry.constants | static, dynamic=entry.dynamic | numbers
    )


def _add(entry: Converter) -> None:
    """Add a converter to the table. Raises ValueError if it does not fit its schema, or a user's
    schema is not that of torch's operator.
    """
    _ = entry.signature  # raises if it does not fit
    if entry.is_users:
        extension.check_schema(entry.schema, entry.key, entry.build)
        ir.CONVERTED_WHOLE.add(entry.key)
    CONVERTERS[entry.key] = entry


def converted_by(node: Node) -> str:
    """`relu (builder/conversion/converters/activation.py:20)`: the converter of the node, else its
    evaluator; empty without one.
    """
    key = key_of_node(node)
    entry = CONVERTERS.get(key)
    function = entry.build if entry else EVALUATORS.get(key)
    return extension.location(function) if function else ""


def users_function(key: str) -> Callable[..., Any] | None:
    """The converter or evaluator of an operator, if it is defined outside trt-build."""
    entry = CONVERTERS.get(key)
    for function in (entry.build if entry else None, EVALUATORS.get(key)):
        if function and extension.is_users(function):
            return function
    return None


def plugin_functions() -> list[str]:
    """The converters and evaluators that are defined outside trt-build, with file and line."""
    built = [entry.build for entry in CONVERTERS.values()]
    functions = [*map(extension.defined, built), *EVALUATORS.values()]
    users = filter(extension.is_users, functions)
    return list(dict.fromkeys(map(extension.location, users)))


def evaluator(
    *keys: str, override: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function `(ctx, *values) -> value` that works on static values, DynamicScalars and
    lists; `(ctx, node, *values)` if it needs the node.

    The key is a node kind (`prim::ListConstruct`) or a schema's `aten::size.int`; values are not
    unwrapped. `override` replaces an existing evaluator. Raises ValueError if a key is registered
    twice, or a user's function does not take the arguments of torch's operator.
    """

    def register(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        for key in keys:
            extension.claim(EVALUATORS, key, evaluate, "an evaluator", override)
            if extension.is_users(evaluate):
                extension.check_parameters(key, evaluate, takes_node(evaluate))
            EVALUATORS[key] = evaluate
            WITH_NODE.discard(key)
            if takes_node(evaluate):
                WITH_NODE.add(key)
        return evaluate

    return register
