"""Finds a program's in-place writes, and those that can be written as new values at once.

A graph without writes needs no functionalization, and its views and copies are values. Most
programs write only to a result that nothing else reads, such as `relu_` behind a normalization.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from builder.frontends.export.numbers import is_number

aten: Any = torch.ops.aten
FUNCTIONAL = {
    aten.masked_fill_.Scalar: aten.masked_fill.Scalar,
    aten.masked_fill_.Tensor: aten.masked_fill.Tensor,
    aten.add_.Tensor: aten.add.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.relu_.default: aten.relu.default,
    aten.relu6_.default: aten.relu6.default,
    aten.hardtanh_.default: aten.hardtanh.default,
    aten.hardswish_.default: aten.hardswish.default,
    aten.hardsigmoid_.default: aten.hardsigmoid.default,
    aten.leaky_relu_.default: aten.leaky_relu.default,
    aten.elu_.default: aten.elu.default,
    aten.silu_.default: aten.silu.default,
    aten.sigmoid_.default: aten.sigmoid.default,
    aten.tanh_.default: aten.tanh.default,
}
"""The functional operators that return the dtype and shape of their first argument, if all tensors
of the call that they compute with have that dtype.
"""
_COMPUTED = ("aten.add_", "aten.mul_")
"""Operators whose functional variants have the common dtype of two tensors."""
_NEW = frozenset(
    f"aten.{name}"
    for name in (
        *(
            "conv1d",
            "conv2d",
            "conv3d",
            "convolution",
            "linear",
            "addmm",
            "bmm",
            "embedding",
        ),
        *("batch_norm", "layer_norm", "group_norm"),
        *(
            "zeros",
            "ones",
            "full",
            "zeros_like",
            "ones_like",
            "full_like",
            "new_zeros",
            "cat",
        ),
        *(
            "add",
            "sub",
            "mul",
            "div",
            "avg_pool2d",
            "eq",
            "ne",
            "relu",
            "silu",
            "sigmoid",
        ),
    )
)
"""Operators whose results share no memory with their arguments."""
IDENTITIES = frozenset(["aten.contiguous", "aten.clone"])
"""Operators that return the values of their input. They matter only if memory is written."""
DROPOUTS = frozenset(
    f"aten.{name}{suffix}"
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    for suffix in ("", "_")
)
"""Operators that return their input itself outside of training."""
_END = 2**63 - 1


class Writes:
    """`functional` has the in-place calls that become calls of a functional operator. `remain` is
    whether the program has other in-place calls.
    """

    def __init__(
        self,
        graphs: Iterable[torch.fx.Graph],
        skipped: Collection[torch.fx.Node],
        signature: Any,
    ) -> None:
        """`skipped` are calls that are not written; `signature` returns that of an OpOverload."""
        self.functional: dict[torch.fx.Node, Any] = {}
        self.remain = False
        new: set[torch.fx.Node] = set()
        nodes = [node for graph in graphs for node in graph.nodes]
        for node in nodes:
            if not isinstance(node.target, torch._ops.OpOverload) or node in skipped:
                continue
            schema = signature(node.target)
            if schema.written and _writes_new(node, schema.name, new):
                self.functional[node] = FUNCTIONAL[node.target]
                new.add(node)
            elif schema.written:
                arguments = schema.by_name(node.args, node.kwargs)
                self.remain |= not leaves_input(schema.name, node.args, arguments)
            elif schema.name in _NEW:
                new.add(node)


def _writes_new(node: torch.fx.Node, name: str, new: set[torch.fx.Node]) -> bool:
    """Whether a call writes to a new tensor that only this call reads, and its functional variant
    has the same dtype and shape.
    """
    target: Any = None
    if node.args:
        target = node.args[0]
    if node.target not in FUNCTIONAL or target not in new or "out" in node.kwargs:
        return False
    if len(target.users) > 1:
        return False
    if sum(argument is target for argument in node.args) > 1:
        return False
    return name not in _COMPUTED or _common(node.meta.get("val"), target, node.args[1])


def _common(result: Any, *operands: Any) -> bool:
    """Whether the operands are tensors of the result's dtype, none of them a wrapped number."""
    values = [
        operand.meta.get("val") for operand in operands if hasattr(operand, "meta")
    ]
    return len(values) == len(operands) and all(
        isinstance(value, torch.Tensor) and value.dtype is result.dtype
        for value in values
    )


def is_whole_slice(arguments: dict[str, Any]) -> bool:
    """Whether a slice has a whole axis, with step 1."""
    start = arguments.get("start")
    end = arguments.get("end")
    step = arguments.get("step", 1)
    first = start is None or is_number(start, 0)
    return first and (end is None or is_number(end, _END)) and is_number(step, 1)


def leaves_input(name: str, args: Sequence[Any], arguments: dict[str, Any]) -> bool:
    """Whether a call returns its first argument itself: dropout outside of training, or a slice of
    a whole axis.
    """
    if name in DROPOUTS:
        return arguments.get("train") is False
    return name == "aten.slice" and bool(args) and is_whole_slice(arguments)
