"""Nodes that must be in one segment: a list that a loop or branch returns together with tensors can
neither be a boundary value nor be recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence

from builder.partition.segments import TENSORRT, TORCH, assign
from builder.partition.view import View, is_tensor
from builder.reachable import reachable


def colocated(graph_view: View, kinds: Sequence[str]) -> list[str]:
    """The kinds, with additional nodes in torch so that each user of such a list is in its
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
    """(producer, user) of each such list, directly or through free nodes."""
    producers = [
        i
        for i, step in enumerate(graph_view.steps)
        if not step.is_free and not all(map(is_tensor, step.node.outputs()))
    ]
    if not producers:
        return []
    list_names = {
        value.debugName()
        for i in producers
        for value in graph_view.steps[i].node.outputs()
        if not is_tensor(value)
    }
    producers_behind = _producers_behind(graph_view, list_names)
    return [
        (producer, reader)
        for reader, step in enumerate(graph_view.steps)
        if not step.is_free
        for producer in sorted(producers_behind[reader])
    ]


def _producers_behind(graph_view: View, list_names: set[str]) -> list[set[int]]:
    """For each step, the producers of the lists that it reads, directly or through free nodes."""
    producers_behind: list[set[int]] = []
    for step, parents in zip(graph_view.steps, graph_view.parents, strict=True):
        direct = {
            graph_view.producer[name] for name in step.reads if name in list_names
        }
        free_parents = [
            parent for parent in parents if graph_view.steps[parent].is_free
        ]
        producers_behind.append(
            direct.union(*(producers_behind[parent] for parent in free_parents))
        )
    return producers_behind
