"""The length of a last axis, where a layer with constant weights says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.dtypes import bottom_up, input_facts


@lowering_pass("fold-widths", touches=("aten::size",))
def fold_widths(graph: Any, context: Context) -> None:
    """The size of a last axis that linear, layer_norm or embedding makes or reads is the number that its weights say;
    the other sizes of what linear makes are those of what it reads, and those of a transposed tensor the tensor's.

    Attention divides the width by its number of heads; with the number known the shapes of its heads are.
    """
    sizes = (node for node in ir.nodes_of(graph, "aten::size") if node.inputsSize() == 2 and not ir.in_fallback(node))
    asked = {node.output().unique() for node in sizes if _tells(node.inputsAt(0))}
    if not asked:
        return
    facts = input_facts(graph, context)
    static = {value.unique(): spec.shape for value, spec in zip(graph.inputs(), context.specs, strict=False)}
    for node in bottom_up(graph):
        if node.kind() == "aten::size" and node.output().unique() in asked:
            _fold(graph, node, facts.rank(node.inputsAt(0)), static)
        else:
            facts.learn(node)


def _tells(value: Any) -> bool:
    return value.node().kind() in ("aten::transpose", "aten::permute") or width(value) is not None


def _fold(graph: Any, node: Any, rank: int | None, static: Mapping[int, Sequence[Any]]) -> None:
    axis = ir.constant(node.inputsAt(1))
    if axis is None or rank == 0 or (rank is None and axis != -1):
        return
    value, last = node.inputsAt(0), axis in (-1, (rank or 0) - 1)
    if rank is not None:
        value, axis = _source(value, axis % rank, rank)
        last = axis == rank - 1
    length = static[value.unique()][axis] if value.unique() in static else width(value) if last else None
    if isinstance(length, int) and length >= 0:
        ir.replace(node, [ir.insert_constant(graph, length, node)])
    elif value != node.inputsAt(0):
        node.replaceInput(0, value)
        node.replaceInput(1, ir.insert_constant(graph, axis, node))


def _source(value: Any, axis: int, rank: int) -> tuple[Any, int]:
    """The tensor, and its axis, whose size this axis has."""
    while True:
        node = value.node()
        if ir.in_fallback(node):
            return value, axis
        if node.kind() == "aten::linear" and axis != rank - 1:
            value = node.inputsAt(0)
        elif node.kind() == "aten::permute" and (order := ir.int_list(node.inputsAt(1))) is not None:
            value, axis = node.inputsAt(0), order[axis] % rank
        elif node.kind() == "aten::transpose" and None not in (pair := [ir.constant(node.inputsAt(n)) for n in (1, 2)]):
            one, other = (number % rank for number in pair)
            value, axis = node.inputsAt(0), {one: other, other: one}.get(axis, axis)
        else:
            return value, axis


def width(value: Any) -> int | None:
    """The length of the last axis of a tensor that a layer with constant weights makes or reads; None: not known."""
    node = value.node()
    made = _MADE[node.kind()](node) if node.kind() in _MADE else None
    if made is not None:
        return made
    read = (_READ[use.user.kind()](use.user) for use in value.uses() if use.user.kind() in _READ and use.offset == 0)
    return next((length for length in read if length is not None), None)


def _of(weight: Any, axis: int) -> int | None:
    known = ir.constant(weight)
    return int(known.shape[axis]) if isinstance(known, torch.Tensor) and known.dim() == 2 else None


def _normalised(node: Any) -> int | None:
    shape = ir.int_list(node.inputsAt(1))
    return shape[-1] if shape else None


_MADE = {
    "aten::linear": lambda node: _of(node.inputsAt(1), 0),
    "aten::embedding": lambda node: _of(node.inputsAt(0), 1),
    "aten::layer_norm": _normalised,
}
_READ = {"aten::linear": lambda node: _of(node.inputsAt(1), 1), "aten::layer_norm": _normalised}
