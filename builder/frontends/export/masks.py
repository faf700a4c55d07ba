"""Finds attention masks that let every position attend to every other.

A library that omits such a mask in a trace computes it in a program: transformers 5 compares
positions with 0 (`arange(length) >= 0`). Attention without a mask has the same values.
"""

from __future__ import annotations

from typing import Any

import torch

from builder.frontends.export.numbers import is_number

ATTENTION = "aten.scaled_dot_product_attention"
_SAME_VALUES = frozenset(
    f"aten.{name}" for name in ("unsqueeze", "expand", "slice", "alias")
)
"""Operators whose results have only values of their input."""


def is_without_effect(node: torch.fx.Node, mask: Any) -> bool:
    """Whether the mask of an attention node is true everywhere, and does not change the shape of
    the result. The program must not write to memory.
    """
    if not isinstance(mask, torch.fx.Node) or not _is_true(mask):
        return False
    query = node.args[0]
    result = node.meta.get("val")
    if not isinstance(query, torch.fx.Node):
        return False
    if not isinstance(result, torch.Tensor):
        return False
    return _shape(result)[:-1] == _shape(query.meta["val"])[:-1]


def _shape(tensor: torch.Tensor) -> list[str]:
    return [str(size) for size in tensor.shape]


def _name(node: torch.fx.Node) -> str:
    if node.op == "call_function":
        return str(node.target).rpartition(".")[0]
    return ""


def _source(node: torch.fx.Node) -> torch.fx.Node:
    """The node before operators that keep the values."""
    while _name(node) in _SAME_VALUES and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def _is_true(node: torch.fx.Node) -> bool:
    """Whether a tensor is `x >= 0` of numbers that are not negative."""
    node = _source(node)
    is_compared = node.target is torch.ops.aten.ge.Scalar and is_number(node.args[1], 0)
    return is_compared and _is_position(node.args[0])


def _is_position(node: Any) -> bool:
    """Whether a tensor has the positions `arange(length)`, with or without 0 added."""
    if isinstance(node, torch.fx.Node):
        node = _source(node)
    if not isinstance(node, torch.fx.Node):
        return False
    if node.target is torch.ops.aten.add.Tensor and not node.kwargs:
        return is_number(node.args[1], 0) and _is_position(node.args[0])
    return node.target is torch.ops.aten.arange.default and _is_integer(node)


def _is_integer(node: torch.fx.Node) -> bool:
    tensor = node.meta.get("val")
    return isinstance(tensor, torch.Tensor) and tensor.dtype is torch.int64
