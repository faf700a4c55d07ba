"""Values that the graph itself determines: constants, and lists built of them."""

from __future__ import annotations

from typing import Any

import torch

from builder.graph_types import Value

CHANGES = frozenset(
    f"aten::{n}"
    for n in """
        append extend insert pop popitem clear remove add_ mul_ _set_item Delete sort reverse update
        setdefault
    """.split()
)
"""Operators that write to their first input, a list or dictionary; some also write to tensors.
"""


def constant(value: Value) -> Any:
    """The Python value of a constant; None also when the value is not known, see `is_constant`."""
    return value.toIValue() if is_constant(value) else None


def is_constant(value: Value) -> bool:
    """Whether a `prim::Constant` defines this value."""
    return bool(value.node().kind() == "prim::Constant")


def is_none(value: Value) -> bool:
    """Whether this value is the constant None."""
    return is_constant(value) and value.toIValue() is None


def int_list(value: Value) -> list[int] | None:
    """The integers of a list that is a constant or built of constants; None when one of them is not
    known.
    """
    if is_constant(value):
        items = value.toIValue()
        if isinstance(items, list | tuple):
            return list(items)
        return None
    node = value.node()
    if (
        node.kind() != "prim::ListConstruct"
        or not all(is_constant(item) for item in node.inputs())
        or _is_changed(value)
    ):
        return None
    return [item.toIValue() for item in node.inputs()]


def list_items(value: Value) -> list[Any] | None:
    """The elements of a list: the values that it is built from, or the numbers of a constant list.
    None for other lists, and for a list that may be written to.
    """
    node = value.node()
    if node.kind() != "prim::ListConstruct":
        return int_list(value)
    if _is_changed(value):
        return None
    return list(node.inputs())


def list_length(value: Value) -> int | None:
    """The number of elements of a list that is a constant or built in the graph; None when it is
    not known.
    """
    if value.node().kind() == "prim::ListConstruct":
        if _is_changed(value):
            return None
        return int(value.node().inputsSize())
    items = constant(value)
    if isinstance(items, list | tuple):
        return len(items)
    return None


def weight_shape(weight: Value) -> tuple[int, ...] | None:
    """The shape of a constant, possibly behind fake quantization."""
    while weight.node().kind().startswith("aten::fake_quantize_"):
        weight = weight.node().inputsAt(0)
    tensor = constant(weight)
    if isinstance(tensor, torch.Tensor):
        return tuple(tensor.shape)
    return None


def _is_changed(built: Value) -> bool:
    """Whether the list may be written to after its construction, directly or through a branch, loop
    or container.
    """
    kinds = {use.user.kind() for use in built.uses()}
    return any(kind in CHANGES or kind.startswith("prim::") for kind in kinds)
