"""Which nodes go together: a graph's nodes of two kinds, contracted to as few segments as possible,
never in a cycle.

Plain Python over numbers: no torch and no TensorRT here, so that its promises can be tested on any
graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

TENSORRT, TORCH, FREE = "tensorrt", "torch", "free"
"""The library that runs a node. A free node belongs to no segment: each user recomputes it, and its
inputs are read through it.
"""
NOWHERE = -1
"""The segment of a free node."""


def assign(kinds: Sequence[str], parents: Sequence[Sequence[int]]) -> list[int]:
    """The segment number of each node. Nodes are in topological order: `parents[i]` are indices
    below i.

    A node's level is the greatest number of changes of kind on any path to it; nodes of one level
    are of one kind and form one segment. Edges never lead to a lower level, so the contraction has
    no cycle. No partition has fewer segments: put any valid one in topological order, merge
    neighbors of one kind, and the kinds alternate; level numbers are the earliest position in such
    an order, for each of the two kinds that it can begin with. Linear in nodes and edges: a free
    node passes on two numbers, however much is behind it.
    """
    candidates = [_levels(kinds, parents, first) for first in (TENSORRT, TORCH)]
    levels = min(candidates, key=lambda levels: len(set(levels) - {NOWHERE}))
    used = {
        level: number for number, level in enumerate(sorted(set(levels) - {NOWHERE}))
    }
    return [used.get(level, NOWHERE) for level in levels]


def _levels(
    kinds: Sequence[str], parents: Sequence[Sequence[int]], first: str
) -> list[int]:
    """The level of each node: even for the kind `first`, odd for the other one, none for a free
    node.
    """
    reached: list[tuple[int, int]] = []
    """For each node the largest even and the largest odd level at or before it, which its users
    must not precede.
    """
    levels: list[int] = []
    for kind, parents_of_node in zip(kinds, parents, strict=True):
        even = odd = NOWHERE
        for parent in parents_of_node:
            parent_even, parent_odd = reached[parent]
            if parent_even > even:
                even = parent_even
            if parent_odd > odd:
                odd = parent_odd
        if kind == FREE:
            levels.append(NOWHERE)
            reached.append((even, odd))
        elif kind == first:
            levels.append(max(0, even, odd + 1))
            reached.append((levels[-1], NOWHERE))
        else:
            levels.append(max(1, even + 1, odd))
            reached.append((NOWHERE, levels[-1]))
    return levels


ROUNDS = 64
"""Number of rounds in which only the lighter half of the light segments is merged; after that all
are merged at once.
"""


def merge_light_segments(
    kinds: Sequence[str], parents: Sequence[Sequence[int]], least: int
) -> list[str]:
    """The kinds after every TensorRT segment of fewer than `least` nodes is merged into its torch
    neighbors, lighter ones first.

    Merging one segment can join its neighbors, so segments are computed again until none is too
    light. Each round merges the lighter half, so that the number of rounds is logarithmic.
    """
    kinds = list(kinds)
    iteration = 0
    while light := _light(segments := assign(kinds, parents), kinds, least):
        iteration += 1
        chosen = set(light)
        if iteration < ROUNDS:
            chosen = set(light[: (len(light) + 1) // 2])
        for index, segment in enumerate(segments):
            if segment in chosen:
                kinds[index] = TORCH
    return kinds


def _light(segments: Sequence[int], kinds: Sequence[str], least: int) -> list[int]:
    """The TensorRT segments of too few nodes, lightest first."""
    pairs = zip(segments, kinds, strict=True)
    counts = Counter(segment for segment, kind in pairs if kind == TENSORRT)
    light = [segment for segment in counts if counts[segment] < least]
    return sorted(light, key=lambda segment: (counts[segment], segment))
