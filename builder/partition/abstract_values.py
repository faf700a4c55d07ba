"""Abstract values: tensors without data, on meta, or fake tensors with unknown sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from builder.conversion import MISSING


def signature(value: object) -> Any:
    """A hashable key that is equal for values for which operators return the same shapes."""
    if isinstance(value, torch.Tensor):
        return value.is_meta, value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return (type(value), *map(signature, value))
    return type(value), value


def is_unknown(value: object) -> bool:
    """Whether a size in the value depends on data."""
    if isinstance(value, list | tuple):
        return any(is_unknown(element) for element in value)
    return isinstance(value, FakeTensor | torch.SymInt | torch.SymFloat | torch.SymBool)


def common(first: object, second: object) -> Any:
    """The value if both have the same shapes, else MISSING."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if (
            not is_unknown([first, second])
            and first.shape == second.shape
            and first.dtype == second.dtype
        ):
            return without_data(first)
        return MISSING
    if (
        type(first) is type(second)
        and isinstance(first, bool | int | float)
        and first == second
    ):
        return first
    return MISSING


def on_meta(values: Sequence[Any]) -> bool:
    """Whether one of the values is or contains a meta tensor."""
    for value in values:
        if isinstance(value, list):
            if on_meta(value):
                return True
        elif getattr(value, "is_meta", False):
            return True
    return False


def has_data(value: object) -> bool:
    """Whether the value is or contains a tensor with data."""
    if isinstance(value, list):
        return any(map(has_data, value))
    return isinstance(value, torch.Tensor) and not value.is_meta


def without_data(value: object) -> Any:
    """The value with its tensors moved to meta; fake tensors are not changed."""
    if isinstance(value, list):
        return [without_data(element) for element in value]
    if isinstance(value, torch.Tensor) and value.is_meta:
        return value
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        return value.to("meta")
    return value


def fake(value: object) -> Any:
    """The value with its tensors converted by the active fake tensor mode."""
    if isinstance(value, list):
        return [fake(element) for element in value]
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        return torch.empty(value.shape, dtype=value.dtype)
    return value


def at(value: object, size: int) -> Any:
    """The tensor with its unknown sizes replaced by these sizes."""
    if not isinstance(value, FakeTensor):
        return value
    shape = [
        size if isinstance(axis, torch.SymInt) else int(axis) for axis in value.shape
    ]
    return torch.empty(shape, dtype=value.dtype, device="meta")


def with_known_sizes(value: object) -> Any:
    """The value as a plain meta tensor if all sizes are known. An unknown size is assumed not to be
    0 or 1, as in torch.export: these change the behavior of operators (broadcasting), but rarely
    the result's shape.
    """
    if isinstance(value, list | tuple):
        return [with_known_sizes(element) for element in value]
    if not isinstance(value, FakeTensor):
        return value
    unknown = [size for size in value.shape if isinstance(size, torch.SymInt)]
    for size in unknown:
        with contextlib.suppress(RuntimeError):
            # a result computed from one element does not have two
            torch._check(size >= 2)  # type: ignore[no-untyped-call]
    with _disable_current_modes():
        if unknown:
            return value
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
