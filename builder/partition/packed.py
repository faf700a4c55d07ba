"""Packed sequences: shape rules, and the rule that one segment contains all users of a sequence.

In an engine a packed sequence is a padded tensor and its lengths, in torch it is packed. It
therefore cannot be a boundary value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from builder.conversion import BY_ROW
from builder.partition.abstract_values import without_data
from builder.partition.extract import closure, inputs_of
from builder.partition.segments import TENSORRT, TORCH, assign
from builder.partition.view import Step, View

PACK = "aten::_pack_padded_sequence"
PAD = "aten::_pad_packed_sequence"
LAYERS = frozenset(
    f"aten::{name}.data" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
)

# Shapes

NewSize = Callable[[], Any]
"""Creates a data-dependent size."""
Rule = Callable[[list[Any], NewSize], list[Any]]
"""Returns a node's outputs for these inputs, with sizes but without data."""


def rule(key: str, values: list[Any]) -> Rule | None:
    """The shape rule for a node that packs, unpacks, or reads packed data; None if torch can infer
    the shape. For packing, torch infers the padded tensor's size instead of that of the data.
    """
    if key == "aten::select.int":
        if hasattr(values[0], "batch") and values[1:] == [0, 0]:
            return _first
        return None
    if key == PAD and not hasattr(values[1], "batch"):
        return None
    return _RULES.get(key)


def _pack(values: list[Any], unknown: NewSize) -> list[Any]:
    x, _, batch_first = values
    sizes = torch.empty(unknown(), dtype=torch.int64)
    sizes.batch = x.shape[0 if batch_first else 1]  # type: ignore[attr-defined]
    return [torch.empty((unknown(), *x.shape[2:]), dtype=x.dtype), sizes]


def _first(values: list[Any], unknown: NewSize) -> list[Any]:
    """batch_sizes[0]"""
    return [torch.tensor(values[0].batch)]


def _layer(values: list[Any], unknown: NewSize) -> list[Any]:
    data, _, hx, *_, bidirectional = values
    states = hx if isinstance(hx, list) else [hx]
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return [
        torch.empty((data.shape[0], width), dtype=data.dtype),
        *map(without_data, states),
    ]


def _pad(values: list[Any], unknown: NewSize) -> list[Any]:
    data, sizes, batch_first, _, length = values
    lead = (sizes.batch, length) if batch_first else (length, sizes.batch)
    return [
        torch.empty((*lead, *data.shape[1:]), dtype=data.dtype),
        torch.empty(sizes.batch, dtype=torch.int64),
    ]


_RULES: dict[str, Rule] = {PACK: _pack, PAD: _pad, **dict.fromkeys(LAYERS, _layer)}

# Segments


def kept_whole(graph_view: View, kinds: Sequence[str]) -> list[str]:
    """The kinds, with all nodes in torch that pass a part of a packed sequence to another segment
    or read it from one, and nodes that read its number of rows, which would be a size that depends
    on the data of an input.
    """
    kinds = list(kinds)
    parts = _parts(graph_view)
    if not parts:
        return kinds
    segments = assign(kinds, graph_view.parents)
    all_crossing = {value.debugName() for value in graph_view.graph.outputs()} & parts
    for index, step in enumerate(graph_view.steps):
        if step.is_free:
            continue
        parts_read = parts & set(inputs_of(graph_view, closure(graph_view, [index])))
        crossing = {
            name
            for name in parts_read
            if segments[graph_view.producer[name]] != segments[index]
        }
        if crossing and kinds[index] == TENSORRT:
            kinds[index] = TORCH
        all_crossing |= crossing
    for name in all_crossing:
        if kinds[graph_view.producer[name]] == TENSORRT:
            kinds[graph_view.producer[name]] = TORCH
    return kinds


def _parts(graph_view: View) -> set[str]:
    """The values that are a part of a packed sequence, or its number of rows."""
    parts: set[str] = set()
    for step in graph_view.steps:
        parts.update(_packed_outputs(step, parts))
    return parts


def _packed_outputs(step: Step, parts: set[str]) -> Sequence[str]:
    if step.key == PACK:
        return step.outputs
    if step.key in LAYERS:
        return step.outputs[:1]
    reads = bool(step.inputs) and step.inputs[0] in parts
    name = step.kind.removeprefix("aten::")
    by_row = name in BY_ROW or name == "select"
    if reads and by_row:
        return step.outputs[:1]
    return ()
