"""Which nodes go together: a graph's nodes of two kinds, contracted to as few segments as possible, never in a cycle.

Plain Python over numbers: no torch and no TensorRT here, so that its promises can be tested on any graph.
"""

from __future__ import annotations

from collections.abc import Sequence

TENSORRT, TORCH = "tensorrt", "torch"


def assign(kinds: Sequence[str], parents: Sequence[Sequence[int]]) -> list[int]:
    """The segment number of each node; nodes stand in topological order, `parents[i]` are indices below i.

    A node's level is the greatest number of changes of kind on any path to it; nodes of one level are of one kind and
    form one segment. Edges never lead to a lower level, so the contraction has no cycle. No partition has fewer
    segments: put any valid one in topological order, merge neighbours of one kind, and the kinds alternate; level
    numbers are the earliest place in such an order, for each of the two kinds that it can begin with. Linear time.
    """
    candidates = [_levels(kinds, parents, first) for first in (TENSORRT, TORCH)]
    levels = min(candidates, key=lambda levels: len(set(levels)))
    used = {level: number for number, level in enumerate(sorted(set(levels)))}
    return [used[level] for level in levels]


def _levels(kinds: Sequence[str], parents: Sequence[Sequence[int]], first: str) -> list[int]:
    levels: list[int] = []
    for kind, above in zip(kinds, parents, strict=True):
        start = 0 if kind == first else 1
        after = (levels[p] if kinds[p] == kind else levels[p] + 1 for p in above)
        levels.append(max([start, *after]))
    return levels


def melt(kinds: Sequence[str], parents: Sequence[Sequence[int]], weights: Sequence[float], least: float) -> list[str]:
    """The kinds after every TensorRT segment that weighs less than `least` has gone to torch, smallest first.

    Melting one segment can join its neighbours, so the segments are formed anew until none is too light.
    """
    kinds = list(kinds)
    while True:
        segments = assign(kinds, parents)
        total: dict[int, float] = {}
        for segment, kind, weight in zip(segments, kinds, weights, strict=True):
            if kind == TENSORRT:
                total[segment] = total.get(segment, 0.0) + weight
        light = min(total, key=lambda s: (total[s], s), default=None)
        if light is None or total[light] >= least:
            return kinds
        kinds = [TORCH if s == light else k for s, k in zip(segments, kinds, strict=True)]
