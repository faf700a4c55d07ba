"""The tensors of a module's result by lowering's names, and the inverse."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from builder.errors import ModelFileError
from builder.lowering import field_names, join

Tensors = Mapping[str, torch.Tensor]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a nested result with their names, in order. None is left out; numbers become
    0-d tensors (int64, float64 or bool). Raises ModelFileError for anything else.
    """
    if isinstance(value, torch.Tensor):
        yield name or "output", value
    elif isinstance(value, bool | int | float):
        dtype = torch.float64 if isinstance(value, float) else None
        yield name or "output", torch.tensor(value, dtype=dtype)
    elif value is not None:
        for part, child in _children(value):
            yield from leaves(child, join(name, part))


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    """The parts of a container with their name components."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield key if type(key) is int and key >= 0 else str(key), child
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, tuple | list):
        yield from enumerate(value)
    else:
        raise ModelFileError(
            f"the module returns a {type(value).__name__}; only tensors can be served"
        )


def rebuilt(kind: Any, tensors: Tensors, name: str = "") -> Any:
    """The value of torch's type `kind` with these tensors: the inverse of `leaves`. A part without
    tensors is None if its type is Optional, else an empty list or dictionary.
    """
    form = kind.kind()
    if form == "OptionalType":
        inner = rebuilt(kind.getElementType(), tensors, name)
        return inner if any(True for _ in leaves(inner)) else None
    if form == "TensorType":
        return tensors.get(name or "output")
    if form in _NUMBERS:
        number = tensors.get(name or "output")
        return None if number is None else _NUMBERS[form](number.item())
    if form == "TupleType":
        return _tuple(kind, tensors, name)
    if form == "ListType":
        return _list(kind.getElementType(), tensors, name)
    if form == "DictType":
        return _dictionary(kind, tensors, name)
    return None


_NUMBERS = {"IntType": int, "FloatType": float, "BoolType": bool, "NumberType": float}


def _tuple(kind: Any, tensors: Tensors, name: str) -> Any:
    fields, kinds = field_names(kind), kind.elements()
    places: Sequence[str | int] = fields or range(len(kinds))
    parts = [
        rebuilt(inner, tensors, join(name, place))
        for place, inner in zip(places, kinds, strict=True)
    ]
    if not fields:
        return tuple(parts)
    return namedtuple(kind.annotation_str.rpartition(".")[2], fields)(*parts)


def _list(inner: Any, tensors: Tensors, name: str) -> list[Any]:
    found: list[Any] = []
    while _below(tensors, join(name, len(found))):
        found.append(rebuilt(inner, tensors, join(name, len(found))))
    return found


def _dictionary(kind: Any, tensors: Tensors, name: str) -> dict[Any, Any]:
    """A dictionary of tensors; deeper ones have keys that their names may not show."""
    prefix, whole = f"{name}." if name else "", kind.getKeyType().kind() == "IntType"
    if whole:
        prefix = join(name, 0)[:-1]
    keys = [key.removeprefix(prefix) for key in tensors if key.startswith(prefix)]
    inner = kind.getValueType()
    return {int(key) if whole else key: rebuilt(inner, tensors, f"{prefix}{key}") for key in keys}


def _below(tensors: Tensors, name: str) -> bool:
    """Whether a tensor has this name, or one that begins with it as a structure's."""
    return any(other == name or other.startswith((f"{name}.", f"{name}_")) for other in tensors)
