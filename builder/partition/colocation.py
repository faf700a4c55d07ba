"""Nodes that must be in one segment, because their results can neither be boundary values nor be
recomputed: lists that a loop or branch returns together with tensors, and tensors with torch's
quantized dtypes, which neither Triton nor a golden has.
"""

from __future__ import annotations

from collections.abc import Sequence

from builder.partition.segments import TENSORRT, TORCH, assign
from builder.partition.view import View, is_tensor
from builder.reachable import reachable


def colocated(graph_view: View, kinds: Sequence[str]) -> list[str]:
    """The kinds, with additional nodes in torch so that each user of such a value is in its
    producer's segment. The moved nodes are the user's TensorRT dependencies in segments after the
    producer's; if there are none, the producer itself is moved.
    """
    kinds = list(kinds)
    pairs = _pairs(graph_view)
    while pairs:
        segments = assign(kinds, graph_view.parents)
        separated = [
            (producer, reader)
            for producer, reader in pairs
            if segments[producer] != segments[reader]
        ]
        if not separated:
            break
        for producer, reader in separated:
            later_dependencies = [
                index
                for index in reachable([reader], graph_view.parents.__getitem__)
                if kinds[index] == TENSORRT and segments[index] > segments[producer]
            ]
            for index in later_dependencies or [producer]:
                kinds[index] = TORCH
    return kinds


def _pairs(graph_view: View) -> list[tuple[int, int]]:
    """(producer, user) of each such value, directly or through free nodes."""
    names = _quantized(graph_view) | {
        value.debugName()
        for step in graph_view.steps
        if not step.is_free
        for value in step.node.outputs()
        if not is_tensor(value)
    }
    if not names:
        return []
    producers_behind = _producers_behind(graph_view, names)
    return [
        (producer, reader)
        for reader, step in enumerate(graph_view.steps)
        if not step.is_free
        for producer in sorted(producers_behind[reader])
    ]


_FROM_QUANTIZED = frozenset(
    f"aten::{name}"
    for name in "dequantize int_repr q_per_channel_scales q_per_channel_zero_points".split()
)
"""Operators that read a quantized tensor and return one that is not."""


def _quantized(graph_view: View) -> set[str]:
    """The tensors with a quantized dtype."""
    quantized: set[str] = set()
    lists: set[str] = set()
    for step in graph_view.steps:
        reads = not (quantized | lists).isdisjoint(step.reads)
        if step.kind == "prim::ListConstruct" and reads:
            lists.update(step.outputs)
        elif step.kind.startswith("aten::quantize_per_") or (
            reads and step.kind not in _FROM_QUANTIZED
        ):
            outputs = filter(is_tensor, step.node.outputs())
            quantized.update(value.debugName() for value in outputs)
    return quantized


def _producers_behind(graph_view: View, names: set[str]) -> list[set[int]]:
    """For each step, the producers of these values that it reads, directly or through free
    nodes.
    """
    producers_behind: list[set[int]] = []
    for step, parents in zip(graph_view.steps, graph_view.parents, strict=True):
        direct = {graph_view.producer[name] for name in step.reads if name in names}
        free_parents = [
            parent for parent in parents if graph_view.steps[parent].is_free
        ]
        producers_behind.append(
            direct.union(*(producers_behind[parent] for parent in free_parents))
        )
    return producers_behind
