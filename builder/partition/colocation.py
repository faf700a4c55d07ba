"""Nodes that must be in one segment: a list that a loop or branch returns together with tensors can
neither be a boundary value nor be recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence

from builder.partition.segments import TENSORRT, TORCH, assign
from builder.partition.view import View, is_tensor


def colocated(seen: View, kinds: Sequence[str]) -> list[str]:
    """The kinds, with additional nodes in torch so that each user of such a list is in its
    producer's segment. The moved nodes are the user's TensorRT dependencies in segments after the
    producer's; if there are none, the producer itself is moved.
    """
    kinds = list(kinds)
    pairs = _pairs(seen)
    while pairs:
        segments = assign(kinds, seen.parents)
        apart = [
            (maker, reader)
            for maker, reader in pairs
            if segments[maker] != segments[reader]
        ]
        if not apart:
            break
        for maker, reader in apart:
            later = [
                index
                for index in _with_dependencies(seen, reader)
                if kinds[index] == TENSORRT and segments[index] > segments[maker]
            ]
            for index in later or [maker]:
                kinds[index] = TORCH
    return kinds


def _pairs(seen: View) -> list[tuple[int, int]]:
    """(producer, user) of each such list, directly or through free nodes."""
    makers = [
        i
        for i, step in enumerate(seen.steps)
        if not step.is_free and not all(map(is_tensor, step.node.outputs()))
    ]
    if not makers:
        return []
    loose = {
        v.debugName()
        for i in makers
        for v in seen.steps[i].node.outputs()
        if not is_tensor(v)
    }
    behind: list[set[int]] = []
    for step, above in zip(seen.steps, seen.parents, strict=True):
        own = {seen.producer[name] for name in step.reads if name in loose}
        behind.append(
            own.union(
                *(behind[parent] for parent in above if seen.steps[parent].is_free)
            )
        )
    return [
        (m, reader)
        for reader, step in enumerate(seen.steps)
        if not step.is_free
        for m in sorted(behind[reader])
    ]


def _with_dependencies(seen: View, index: int) -> set[int]:
    """The node and all of its dependencies."""
    found = {index}
    stack = [index]
    while stack:
        for parent in seen.parents[stack.pop()]:
            if parent not in found:
                found.add(parent)
                stack.append(parent)
    return found
