"""Unwrap a node's values to the types of its schema."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, of_lengths
from builder.conversion.facts import is_tensor
from builder.conversion.packing import is_packed
from builder.conversion.registry import Converter


def bind(
    ctx: ConversionContext, converter: Converter, values: list[Any]
) -> SimpleNamespace:
    """The values by argument name, unwrapped by type. Raises Unconvertible if a value must be
    static and is not.
    """
    arguments = converter.arguments
    bound = {}
    for (name, kind), value in zip(arguments, values, strict=False):
        bound[name] = value
        if value is not None:
            bound[name] = _unwrap(ctx, converter, name, kind, value)
    # A node may omit arguments with a default.
    for argument in converter.schema.arguments[len(values) :]:
        bound[argument.name] = argument.default_value
    return SimpleNamespace(**bound)


def _unwrap(
    ctx: ConversionContext, converter: Converter, name: str, kind: str, value: Any
) -> Any:
    if kind == "tensor":
        return _tensor(ctx, converter, name, value)
    if kind == "tensors":
        return [
            element if element is None else _tensor(ctx, converter, name, element)
            for element in value
        ]
    number = _number_or_list(ctx, value)
    if kind == "dynamic":
        return number
    return static(number, f"`{name}`")


def _tensor(
    ctx: ConversionContext, converter: Converter, name: str, value: object
) -> Any:
    is_constant = isinstance(value, torch.Tensor) and name in converter.constants
    if is_constant or is_packed(value):
        return value
    return ctx.tensor(value)


def _number_or_list(ctx: ConversionContext, value: object) -> Any:
    """A number, or a list of numbers. A 0-d tensor for a number is read, as PyTorch does
    implicitly.
    """
    if isinstance(value, list | tuple):
        return [_number_or_list(ctx, element) for element in value]
    if isinstance(value, torch.Tensor):
        return value.item()
    if is_tensor(value):
        return ctx.scalar(value)
    return value


def static(value: object, subject: str) -> Any:
    """The value. Raises Unconvertible if it, or a value in a list, is known only at run time."""
    if isinstance(value, bool | int | float | str):
        return value
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if isinstance(number, DynamicScalar):
            raise dynamic_value(subject, number)
    return value


def dynamic_value(subject: str, value: DynamicScalar) -> Unconvertible:
    """The refusal for a value that must be static. It names the axes that the value depends on, if
    it depends only on axes.
    """
    if not of_lengths(value):
        return Unconvertible(
            f"{subject} must be known at build time, but it is computed at run time"
        )
    names = sorted(str(symbol) for symbol in value.expr.free_symbols)
    axes = ", ".join(names) or "a computed value"
    return Unconvertible(
        f"{subject} must be known at build time but depends on {axes}",
        f"give the dynamic axis ({axes}) one size in the manifest: min = opt = max",
    )


def known_keys(keys: Iterable[object]) -> list[Any]:
    """The keys of a dictionary. Raises Unconvertible for a number that is known only at run time,
    since it may be equal to another key, and for a tensor.
    """
    static_keys = [static(key, "a key of a dictionary") for key in keys]
    if not all(isinstance(key, bool | int | float | str) for key in static_keys):
        raise Unconvertible(
            "a dictionary has tensors as keys", "use numbers or strings as keys"
        )
    return static_keys
