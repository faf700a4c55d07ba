"""Finds attention masks that let every position attend to every other, and masks that are expanded
over the heads.

A library that omits a mask of the first kind in a trace computes it in a program: transformers 5
compares positions with 0 (`arange(length) >= 0`). Attention without it has the same values. Masks
of the second kind are those of torch.nn; attention expands a mask itself.
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
_RESHAPES = frozenset(f"aten.{name}" for name in ("view", "reshape", "_unsafe_view"))


def is_without_effect(node: torch.fx.Node, mask: torch.fx.Node) -> bool:
    """Whether the mask of an attention node is true everywhere, and does not change the shape of
    the result. The program must not write to memory.
    """
    return _is_true(mask) and _has_shape_of_query(node)


def before_expansion(node: torch.fx.Node, mask: torch.fx.Node) -> torch.fx.Node:
    """The mask of an attention node before `expand`. The mask itself if it is not expanded, or if
    it decides the shape of the result. The program must not write to memory.
    """
    wide: Any = mask
    while _name(wide) in _RESHAPES:
        wide = wide.args[0]
    if _name(wide) != "aten.expand" or not _has_shape_of_query(node):
        return mask
    source: torch.fx.Node = wide.args[0]
    ranks = {len(_shape(item)) for item in (mask, source)}
    return source if ranks == {4} and _shape(mask) == _shape(wide) else mask


def _has_shape_of_query(node: torch.fx.Node) -> bool:
    """Whether the result of an attention node has the sizes of its queries, except the last one."""
    return bool(_shape(node)) and _shape(node)[:-1] == _shape(node.args[0])[:-1]


def _shape(node: Any) -> list[str]:
    """The sizes of a tensor; none for anything else."""
    tensor = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if isinstance(tensor, torch.Tensor):
        return [str(size) for size in tensor.shape]
    return []


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
