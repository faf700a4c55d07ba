"""Call the original module with an endpoint's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from builder.errors import LoweringError
from builder.frontends import ExportedModule
from builder.lowering import DICT, FIXED, NUMBER, TENSOR, TUPLE, Part, describe
from builder.manifest import TensorSpec

Constants = Mapping[str, Any]
"""Values of arguments that are not tensors, by name."""


def call_module(
    module: Any,
    specs: Sequence[TensorSpec],
    tensors: Sequence[torch.Tensor],
    constants: Constants = MappingProxyType({}),
) -> Any:
    """The module's result. The tensors are those of forward's arguments in order, as lowering
    flattens them (builder.lowering.arguments); other arguments keep their default.
    """
    keywords = arguments(module, specs, tensors, constants)
    if keywords is None:
        return module(*tensors)
    return module(**keywords)


def arguments(
    module: Any,
    specs: Sequence[TensorSpec],
    tensors: Sequence[torch.Tensor],
    constants: Constants = MappingProxyType({}),
) -> dict[str, Any] | None:
    """The arguments of the module's forward by name, without arguments with defaults; None if
    forward has no schema or another number of tensors.
    """
    schema = getattr(getattr(module, "forward", None), "schema", None)
    if schema is None:
        return None
    remaining = iter(tensors)
    input_names = [spec.name for spec in specs if spec.name]
    values = {}
    fixed = {**constants, **_defaults(schema)}
    try:
        for argument in schema.arguments[1:]:
            name = argument.name
            if name in constants:
                continue
            part = describe(name, argument.type, input_names, fixed)
            if part.form != FIXED or not argument.has_default_value():
                values[name] = _value(part, remaining)
    except (StopIteration, LoweringError):
        return None
    if any(True for _ in remaining):
        return None
    return {**values, **constants}


def _defaults(schema: Any) -> dict[str, Any]:
    return {
        argument.name: argument.default_value
        for argument in schema.arguments[1:]
        if argument.has_default_value()
    }


def positional(
    module: Any,
    specs: Sequence[TensorSpec],
    tensors: Sequence[torch.Tensor],
    constants: Constants = MappingProxyType({}),
) -> list[Any] | None:
    """All arguments of the module's forward in order, defaults filled in; None as in
    `arguments`.
    """
    if isinstance(module, ExportedModule):
        return list(tensors)
    values = arguments(module, specs, tensors, constants)
    if values is None:
        return None
    return [
        values.get(argument.name, argument.default_value)
        for argument in module.forward.schema.arguments[1:]
    ]


def _value(part: Part, remaining: Iterator[torch.Tensor]) -> Any:
    """The value of a part in the call, from the next tensors."""
    if part.form == FIXED:
        return part.value
    if part.form == TENSOR:
        return next(remaining)
    if part.form == NUMBER:
        return next(remaining).item()
    if part.form == DICT:
        return {key: _value(inner, remaining) for key, inner in part.parts}
    values = [_value(inner, remaining) for _, inner in part.parts]
    if part.form == TUPLE:
        return tuple(values)
    return values
