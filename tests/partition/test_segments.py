"""Segments of random graphs are complete, acyclic, of one kind, and as few as possible."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from builder.partition.segments import (
    FREE,
    NOWHERE,
    TENSORRT,
    TORCH,
    assign,
    merge_light_segments,
)

Graph = tuple[list[str], list[list[int]]]


@st.composite
def graphs(draw: st.DrawFn, most: int = 40) -> Graph:
    size = draw(st.integers(1, most))
    kinds = [draw(st.sampled_from([TENSORRT, TORCH])) for _ in range(size)]
    parents = [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else []
        for i in range(size)
    ]
    return kinds, parents


def without_free(kinds: list[str], parents: list[list[int]]) -> Graph:
    """The same graph with working nodes only: the parents of a node include what it reads through
    free nodes.
    """
    behind: list[set[int]] = []
    for index, above in enumerate(parents):
        sources = set().union(*(behind[p] if kinds[p] == FREE else {p} for p in above))
        behind.append(sources if kinds[index] == FREE else {index})
        parents = [*parents[:index], sorted(sources), *parents[index + 1 :]]
    place = {
        index: number
        for number, index in enumerate(
            i for i, kind in enumerate(kinds) if kind != FREE
        )
    }
    return [kinds[i] for i in place], [[place[p] for p in parents[i]] for i in place]


def is_acyclic(segments: list[int], parents: list[list[int]]) -> bool:
    edges = {
        (segments[p], s)
        for s, above in zip(segments, parents, strict=True)
        for p in above
        if segments[p] != s
    }
    left = set(segments)
    while left:
        free = {s for s in left if not any(a in left and b == s for a, b in edges)}
        if not free:
            return False
        left -= free
    return True


def partitions(size: int) -> list[list[int]]:
    """Every way to put `size` nodes into groups (restricted growth strings)."""
    result = [[0]]
    for _ in range(size - 1):
        result = [[*p, g] for p in result for g in range(max(p) + 2)]
    return result


def fewest(kinds: list[str], parents: list[list[int]]) -> int:
    """By brute force: the fewest groups of one kind each whose contraction has no cycle."""
    sound = (
        p
        for p in partitions(len(kinds))
        if all(
            kinds[a] == kinds[b]
            for a, b in itertools.combinations(range(len(p)), 2)
            if p[a] == p[b]
        )
        and is_acyclic(p, parents)
    )
    return min(len(set(p)) for p in sound)


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_segments_have_one_kind_and_are_acyclic(graph: Graph) -> None:
    kinds, parents = graph
    segments = assign(kinds, parents)
    assert len({(s, k) for s, k in zip(segments, kinds, strict=True)}) == len(
        set(segments)
    )
    assert is_acyclic(segments, parents)
    assert sorted(set(segments)) == list(range(len(set(segments))))


@settings(max_examples=60, deadline=None)
@given(graphs(most=7))
def test_no_partition_has_fewer_segments(graph: Graph) -> None:
    """The ratio to the brute-force optimum is 1: the level numbers are optimal."""
    kinds, parents = graph
    assert len(set(assign(kinds, parents))) == fewest(kinds, parents)


def test_independent_branches_share_segments() -> None:
    """Two interleaved chains TensorRT-torch-TensorRT need three segments, not six."""
    kinds = [TENSORRT, TENSORRT, TORCH, TORCH, TENSORRT, TENSORRT]
    assert assign(kinds, [[], [], [0], [1], [2], [3]]) == [0, 0, 1, 1, 2, 2]


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(1, 6))
def test_merging_leaves_no_light_tensorrt_segment(graph: Graph, least: int) -> None:
    kinds, parents = graph
    merged = merge_light_segments(kinds, parents, least)
    segments = assign(merged, parents)
    assert all(
        segments.count(s) >= least
        for s, k in zip(segments, merged, strict=True)
        if k == TENSORRT
    )
    assert all(
        after in (before, TORCH) for before, after in zip(kinds, merged, strict=True)
    )


@settings(max_examples=80, deadline=None)
@given(graphs(), st.data())
def test_free_nodes_do_not_change_the_segments(
    graph: Graph, data: st.DataObject
) -> None:
    """With constants, sizes and lists between, the segments are those of the graph without them."""
    kinds, parents = graph
    free = data.draw(st.sets(st.integers(0, len(kinds) - 1)))
    kinds = [FREE if index in free else kind for index, kind in enumerate(kinds)]
    segments = assign(kinds, parents)
    assert [s for s, k in zip(segments, kinds, strict=True) if k != FREE] == assign(
        *without_free(kinds, parents)
    )
    assert all(
        (s == NOWHERE) == (k == FREE) for s, k in zip(segments, kinds, strict=True)
    )


def test_only_segments_of_fewer_nodes_than_the_least_are_merged() -> None:
    kinds = [TENSORRT, TORCH, TENSORRT, TENSORRT, TORCH, TENSORRT, TENSORRT, TENSORRT]
    chain = [[], *([i] for i in range(len(kinds) - 1))]
    assert merge_light_segments(kinds, chain, 1) == kinds
    assert merge_light_segments(kinds, chain, 3) == [TORCH] * 5 + [TENSORRT] * 3
