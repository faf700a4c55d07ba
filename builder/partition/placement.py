"""Move additional nodes to torch: segments that cost more than they save, and nodes that must be in
one segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from builder.partition import cost
from builder.partition.colocation import colocated
from builder.partition.extract import closure, inputs_of
from builder.partition.packed import kept_whole
from builder.partition.segments import (
    NOWHERE,
    TENSORRT,
    TORCH,
    assign,
    merge_light_segments,
)
from builder.partition.shapes import Shapes
from builder.partition.view import View

Members = list[tuple[str, list[int]]]
"""(kind, indices of the work nodes) of each segment, in execution order."""


def members(graph_view: View, kinds: Sequence[str]) -> Members:
    """The segments for these kinds."""
    groups: dict[int, list[int]] = {}
    for index, number in enumerate(assign(kinds, graph_view.parents)):
        if number != NOWHERE:
            groups.setdefault(number, []).append(index)
    segments = []
    for _, indices in sorted(groups.items()):
        segments.append((kinds[indices[0]], indices))
    return segments


def final_kinds(
    graph_view: View, kinds: Sequence[str], shapes: Shapes, least: int
) -> list[str]:
    """The kinds after all rules have moved nodes to torch. One rule can enable another, so they
    repeat until nothing changes. Every iteration except the last moves at least one node.
    """
    previous: list[str] = []
    current = list(kinds)
    while current != previous:
        previous = current
        current = merge_light_segments(current, graph_view.parents, least)
        if least > 1:
            current = _without_small_segments(graph_view, current, shapes)
        current = _with_known_inputs(
            graph_view, _moved_beside_readers(graph_view, current, shapes), shapes
        )
        current = colocated(graph_view, kept_whole(graph_view, current))
    return current


def _without_small_segments(
    graph_view: View, kinds: Sequence[str], shapes: Shapes
) -> list[str]:
    """Move TensorRT segments between torch segments to torch if their transitions cost more than
    they save.
    """
    kinds, segments = list(kinds), members(graph_view, kinds)
    inputs = [
        inputs_of(graph_view, closure(graph_view, indices)) for _, indices in segments
    ]
    crossing_names = {name for names in inputs for name in names} | {
        value.debugName() for value in graph_view.graph.outputs()
    }
    inner = list(zip(segments, inputs, strict=True))[1:-1]
    for (kind, indices), segment_inputs in inner:
        outputs = (
            name
            for index in indices
            for name in graph_view.steps[index].outputs
            if name in crossing_names
        )
        bytes_crossing = sum(
            cost.size_in_bytes(shapes, name) for name in (*segment_inputs, *outputs)
        )
        flops = sum(shapes.flops[index] for index in indices)
        if (
            kind == TENSORRT
            and cost.seconds_saved(len(indices), flops, bytes_crossing) < 0
        ):
            for index in indices:
                kinds[index] = TORCH
    return kinds


def _moved_beside_readers(
    graph_view: View, kinds: Sequence[str], shapes: Shapes
) -> list[str]:
    """Move a TensorRT node to torch if a torch node reads its output with a data-dependent shape,
    because such a tensor cannot be an engine output.
    """
    new_kinds = list(kinds)
    read_by_torch = set[str]()
    for index in reversed(range(len(graph_view.steps))):
        unknown = (
            name
            for name in graph_view.steps[index].outputs
            if name in read_by_torch and shapes.spec(name, name) is None
        )
        if new_kinds[index] == TENSORRT and any(unknown):
            new_kinds[index] = TORCH
        if new_kinds[index] == TORCH:
            read_by_torch.update(graph_view.steps[index].reads)
    return new_kinds


def _with_known_inputs(
    graph_view: View, kinds: Sequence[str], shapes: Shapes
) -> list[str]:
    """Move a TensorRT node to torch if it reads a tensor with a data-dependent shape from another
    segment. TensorRT supports such tensors inside an engine (from nonzero), but an engine input
    must have a range.
    """
    kinds = list(kinds)
    for kind, indices in members(graph_view, kinds):
        if kind == TENSORRT and _of_unknown_shape(graph_view, indices, shapes):
            computed = {
                name for index in indices for name in graph_view.steps[index].outputs
            }
            for index in indices:
                if _of_unknown_shape(graph_view, [index], shapes) - computed:
                    kinds[index] = TORCH
    return kinds


def _of_unknown_shape(
    graph_view: View, indices: Sequence[int], shapes: Shapes
) -> set[str]:
    """The values of unknown shape that these nodes read and do not compute."""
    return {
        name
        for name in inputs_of(graph_view, closure(graph_view, indices))
        if shapes.spec(name, name) is None
    }
