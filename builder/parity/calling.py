"""The original module called with an endpoint's tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from builder.manifest.spec import TensorSpec

Constants = Mapping[str, Any]
"""Values of arguments that are not tensors, by name."""


def call(
    module: Any,
    specs: Sequence[TensorSpec],
    tensors: Sequence[torch.Tensor],
    constants: Constants = MappingProxyType({}),
) -> Any:
    """The module's answer. As in lowering the tensors are forward's arguments in order, a tuple
    takes as many as it has elements, an Optional argument takes one where a spec has its name, and
    everything else keeps its default.
    """
    given = arguments(module, specs, tensors, constants)
    return module(*tensors) if given is None else module(**given)


def arguments(
    module: Any,
    specs: Sequence[TensorSpec],
    tensors: Sequence[torch.Tensor],
    constants: Constants = MappingProxyType({}),
) -> dict[str, Any] | None:
    """The arguments of the module's forward by name, those with defaults left out; None where
    forward has no schema or takes another number of tensors.
    """
    schema = getattr(getattr(module, "forward", None), "schema", None)
    if schema is None:
        return None
    left = iter(tensors)
    named = {spec.name for spec in specs}
    try:
        given = {
            a.name: _argument(a.name, a.type, named, left)
            for a in schema.arguments[1:]
            if a.name not in constants and _is_given(a, named)
        }
    except StopIteration:
        return None
    return None if any(True for _ in left) else {**given, **constants}


def positional(
    module: Any,
    specs: Sequence[TensorSpec],
    tensors: Sequence[torch.Tensor],
    constants: Constants = MappingProxyType({}),
) -> list[Any] | None:
    """All arguments of the module's forward in order, defaults filled in; None as in
    `arguments`.
    """
    given = arguments(module, specs, tensors, constants)
    if given is None:
        return None
    return [given.get(a.name, a.default_value) for a in module.forward.schema.arguments[1:]]


def _is_given(argument: Any, named: Collection[str | None]) -> bool:
    kind = argument.type.kind()
    return (
        kind in ("TensorType", "TupleType")
        or argument.name in named
        or not argument.has_default_value()
    )


def _argument(
    name: str, kind: Any, named: Collection[str | None], left: Iterator[torch.Tensor]
) -> Any:
    if kind.kind() == "TupleType":
        parts = enumerate(kind.elements())
        return tuple([_argument(f"{name}_{part}", element, named, left) for part, element in parts])
    if kind.kind() == "OptionalType":
        return _argument(name, kind.getElementType(), named, left) if name in named else None
    tensor = next(left)
    return tensor.item() if kind.kind() in _NUMBERS else tensor


_NUMBERS = frozenset(["FloatType", "IntType", "BoolType", "NumberType"])
"""Types of arguments that take a number; an input of one element brings it."""
