"""What else runs in torch besides what TensorRT refuses: segments that are not worth it, and what
cannot be parted.
"""

from __future__ import annotations

from collections.abc import Sequence

from builder.partition import cost
from builder.partition.extract import closure, inputs_of
from builder.partition.packed import kept_whole
from builder.partition.segments import NOWHERE, TENSORRT, TORCH, assign, melt
from builder.partition.shapes import Shapes
from builder.partition.together import together
from builder.partition.view import View

Members = list[tuple[str, list[int]]]
"""(kind, indices of the work nodes) of each segment, in running order."""


def members(seen: View, kinds: Sequence[str]) -> Members:
    """The segments that these kinds make."""
    groups: dict[int, list[int]] = {}
    for index, number in enumerate(assign(kinds, seen.parents)):
        if number != NOWHERE:
            groups.setdefault(number, []).append(index)
    return [(kinds[groups[number][0]], groups[number]) for number in sorted(groups)]


def settled(seen: View, kinds: Sequence[str], shapes: Shapes, least: int) -> list[str]:
    """The kinds after every rule has sent to torch what it must. What one sends can leave less than
    another one requires, so they repeat until none finds anything; every iteration but the last has
    more in torch.
    """
    before: list[str] = []
    now = list(kinds)
    while now != before:
        before = now
        now = melt(now, seen.parents, [1.0] * len(now), least)
        if least > 1:
            now = _without_islands(seen, now, shapes)
        now = _with_known_borders(seen, _beside_readers(seen, now, shapes), shapes)
        now = together(seen, kept_whole(seen, now))
    return now


def _without_islands(seen: View, kinds: Sequence[str], shapes: Shapes) -> list[str]:
    """TensorRT segments with torch on both sides whose transitions cost more than they save go to
    torch.
    """
    kinds, segments = list(kinds), members(seen, kinds)
    inputs = [inputs_of(seen, closure(seen, indices)) for _, indices in segments]
    wanted = {name for names in inputs for name in names} | {
        v.debugName() for v in seen.graph.outputs()
    }
    for (kind, indices), read in list(zip(segments, inputs, strict=True))[1:-1]:
        made = (name for index in indices for name in seen.steps[index].outputs if name in wanted)
        crossing = sum(cost.size_in_bytes(shapes, name) for name in (*read, *made))
        flops = sum(shapes.flops[index] for index in indices)
        if kind == TENSORRT and cost.seconds_saved(len(indices), flops, crossing) < 0:
            for index in indices:
                kinds[index] = TORCH
    return kinds


def _beside_readers(seen: View, kinds: Sequence[str], shapes: Shapes) -> list[str]:
    """A TensorRT node that makes, for one in torch, a tensor whose shape depends on data goes to
    torch: an engine's output of it has no endpoint.
    """
    found, read = list(kinds), set[str]()
    for index in reversed(range(len(seen.steps))):
        unknown = (
            name
            for name in seen.steps[index].outputs
            if name in read and shapes.spec(name, name) is None
        )
        if found[index] == TENSORRT and any(unknown):
            found[index] = TORCH
        if found[index] == TORCH:
            read.update(seen.steps[index].reads)
    return found


def _with_known_borders(seen: View, kinds: Sequence[str], shapes: Shapes) -> list[str]:
    """A TensorRT node that reads, from another segment, a tensor whose shape depends on data goes
    to torch: within an engine TensorRT can hold such a tensor (its own nonzero), an engine's input
    must have a range.
    """
    kinds = list(kinds)
    for kind, indices in members(seen, kinds):
        if kind == TENSORRT and _loose(seen, indices, shapes):
            made = {name for index in indices for name in seen.steps[index].outputs}
            for index in indices:
                if _loose(seen, [index], shapes) - made:
                    kinds[index] = TORCH
    return kinds


def _loose(seen: View, indices: Sequence[int], shapes: Shapes) -> set[str]:
    """What these nodes read and none of them makes, of a shape that is not known."""
    return {
        name for name in inputs_of(seen, closure(seen, indices)) if shapes.spec(name, name) is None
    }
