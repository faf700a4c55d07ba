"""The tensors of a module's result by lowering's names, and the inverse."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from builder.errors import ModelFileError
from builder.lowering import contains, field_names
from builder.names import join

Tensors = Mapping[str, torch.Tensor]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a nested result with their names, in order.

    None is left out. Numbers become 0-d tensors (int64, float64 or bool). Raises ModelFileError for
    any other value.
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


class ListTooLong(ModelFileError):
    """A list that a module returns has more elements than the manifest declares."""


def check_lengths(tensors: Tensors, declared: Mapping[str, int], golden: str) -> None:
    """Raise ListTooLong if one of the `declared` lists has more elements in these tensors."""
    for name, most in declared.items():
        if (length := length_of(tensors, name)) > most:
            raise ListTooLong(
                f"golden {golden}: the list {name!r} has {length} elements, and max_lengths"
                f" declares at most {most}",
                fix=f"write max_lengths: {{{name}: {length}}} or more in the manifest",
            )


def length_of(tensors: Iterable[str], name: str) -> int:
    """The number of elements of the list `name`. Elements without a tensor at its end
    do not count.
    """
    pattern = re.compile(rf"{re.escape(name)}_(\d+)(?:$|[._])")
    indices = (int(match[1]) for match in map(pattern.match, tensors) if match)
    return max((index + 1 for index in indices), default=0)


def rebuilt(
    kind: Any, tensors: Tensors, name: str = "", lists: Collection[str] = ()
) -> Any:
    """The value of torch's type `kind` with these tensors: the inverse of `leaves`.

    A part without tensors is None if the type is Optional, else an empty list or dictionary.
    `lists` are the names of lists of unknown length, which may be empty.
    """
    form = kind.kind()
    if form == "OptionalType":
        inner = rebuilt(kind.getElementType(), tensors, name, lists)
        if any(True for _ in leaves(inner)):
            return inner
        return None
    if form == "TensorType":
        return tensors.get(name or "output")
    if form in _NUMBERS:
        number = tensors.get(name or "output")
        if number is None:
            return None
        return _NUMBERS[form](number.item())
    if form == "TupleType":
        return _tuple(kind, tensors, name, lists)
    if form == "ListType":
        return _rebuilt_list(kind.getElementType(), tensors, name, lists)
    if form == "DictType":
        return _dictionary(kind, tensors, name, lists)
    return None


_NUMBERS = {"IntType": int, "FloatType": float, "BoolType": bool, "NumberType": float}


def _tuple(kind: Any, tensors: Tensors, name: str, lists: Collection[str]) -> Any:
    fields = field_names(kind)
    kinds = kind.elements()
    keys: Sequence[str | int] = fields or range(len(kinds))
    parts = [
        rebuilt(inner, tensors, join(name, key), lists)
        for key, inner in zip(keys, kinds, strict=True)
    ]
    if not fields:
        return tuple(parts)
    return namedtuple(kind.annotation_str.rpartition(".")[2], fields)(*parts)


def _rebuilt_list(
    inner: Any, tensors: Tensors, name: str, lists: Collection[str]
) -> list[Any]:
    elements: list[Any] = []
    while _has_tensors(tensors, join(name, len(elements))):
        elements.append(rebuilt(inner, tensors, join(name, len(elements)), lists))
    return elements


def _dictionary(
    kind: Any, tensors: Tensors, name: str, lists: Collection[str]
) -> dict[Any, Any]:
    """A dictionary of tensors or of `lists`. For other values, the names may not show the keys."""
    prefix = f"{name}." if name else ""
    whole = kind.getKeyType().kind() == "IntType"
    if whole:
        prefix = join(name, 0)[:-1]
    inner = kind.getValueType()
    names = lists if inner.kind() == "ListType" and lists else tensors
    keys = [key.removeprefix(prefix) for key in names if key.startswith(prefix)]
    return {
        int(key) if whole else key: rebuilt(inner, tensors, f"{prefix}{key}", lists)
        for key in keys
    }


def _has_tensors(tensors: Tensors, name: str) -> bool:
    """Whether a tensor has this name, or a name below it in the structure."""
    return any(contains(name, tensor_name) for tensor_name in tensors)
