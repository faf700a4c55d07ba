"""Values that stand for tensors of which only the shape is known: on meta, or fake with sizes that
are unknowns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from builder.conversion import MISSING


def signature(value: object) -> Any:
    """Hashable, and the same for values of which an operator makes the same shapes."""
    if isinstance(value, torch.Tensor):
        return value.is_meta, value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return (type(value), *map(signature, value))
    return type(value), value


def is_unknown(value: object) -> bool:
    """Whether a size in the value depends on data."""
    if isinstance(value, list | tuple):
        return any(is_unknown(v) for v in value)
    return isinstance(value, FakeTensor | torch.SymInt | torch.SymFloat | torch.SymBool)


def common(one: object, other: object) -> Any:
    """The value if both are the same as far as shapes go, else MISSING."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = (
            not is_unknown([one, other]) and one.shape == other.shape and one.dtype == other.dtype
        )
        return without_data(one) if same else MISSING
    return (
        one
        if type(one) is type(other) and isinstance(one, bool | int | float) and one == other
        else MISSING
    )


def on_meta(values: Sequence[Any]) -> bool:
    """Whether one of the values is, or holds, a tensor on meta."""
    return any(on_meta(v) if isinstance(v, list) else getattr(v, "is_meta", False) for v in values)


def has_data(value: object) -> bool:
    """Whether the value is, or holds, a tensor with elements."""
    if isinstance(value, list):
        return any(map(has_data, value))
    return isinstance(value, torch.Tensor) and not value.is_meta


def without_data(value: object) -> Any:
    """The value with its tensors on meta; fake ones stay."""
    if isinstance(value, list):
        return [without_data(v) for v in value]
    if isinstance(value, torch.Tensor) and value.is_meta:
        return value
    return (
        value.to("meta")
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        else value
    )


def fake(value: object) -> Any:
    """The value with tensors that the fake mode which is on makes."""
    if isinstance(value, list):
        return [fake(v) for v in value]
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        return torch.empty(value.shape, dtype=value.dtype)
    return value


def at(value: object, size: int) -> Any:
    """The tensor with its unknown sizes known."""
    if not isinstance(value, FakeTensor):
        return value
    shape = [size if isinstance(axis, torch.SymInt) else int(axis) for axis in value.shape]
    return torch.empty(shape, dtype=value.dtype, device="meta")


def settled(value: object) -> Any:
    """Without the unknowns where none of the sizes is one. An unknown size is taken not to be 0 or
    1, as in torch.export: these change what an operator does (broadcasting), and hardly ever the
    shape that it gives.
    """
    if isinstance(value, list | tuple):
        return [settled(v) for v in value]
    if not isinstance(value, FakeTensor):
        return value
    unknown = [size for size in value.shape if isinstance(size, torch.SymInt)]
    for size in unknown:
        with contextlib.suppress(RuntimeError):  # what is made of one element has no two
            torch._check(size >= 2)  # type: ignore[no-untyped-call]
    with _disable_current_modes():
        return value if unknown else torch.empty(value.shape, dtype=value.dtype, device="meta")
