"""The room's verb: a lowered graph cut into segments for TensorRT and for torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from builder.conversion.convert import named
from builder.errors import UnsupportedOperator, UnsupportedOperators
from builder.lowering import LoweredGraph
from builder.manifest.spec import Fallback, Profile, Range, TensorSpec
from builder.partition import cost
from builder.partition.extract import TensorNames, closure, extract, inputs_of, with_own_outputs
from builder.partition.segments import TENSORRT, TORCH, assign, melt
from builder.partition.shapes import Shapes, infer
from builder.partition.support import support
from builder.partition.view import View, view


@dataclass(frozen=True)
class Segment:
    """One piece: `kind` is "tensorrt" or "torch"; `inputs` and `outputs` are names of tensors: the model's own, or of
    values that cross; no two values of a model share one. `specs` are the inputs', `output_specs` the outputs' (None
    where a shape depends on data, or no endpoint has the dtype: torch only). `indices` are the places in the model's
    graph of the segment's nodes, in its graph's order."""

    kind: str
    lowered: LoweredGraph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    specs: tuple[TensorSpec | None, ...]
    output_specs: tuple[TensorSpec | None, ...]
    profiles: tuple[Profile, ...]
    indices: tuple[int, ...]
    nodes: int
    flops: int
    crossing_bytes: int


@dataclass(frozen=True)
class Partition:
    """All segments in an order in which they can run, and why each node that stays in torch does."""

    segments: tuple[Segment, ...]
    refused: tuple[UnsupportedOperator, ...]
    warnings: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """The model's inputs and outputs by the names that the segments have for them, in the model's order."""

    def summary(self) -> str:
        """`3 segments: TensorRT 96.4 % of the flops, 2 hand-overs, 1.2 MB at opt`."""
        total = sum(s.flops for s in self.segments) or 1
        share = 100 * sum(s.flops for s in self.segments if s.kind == TENSORRT) / total
        crossing = sum(s.crossing_bytes for s in self.segments) / 1e6
        count = len(self.segments)
        return (
            f"{count} segment{'s' if count != 1 else ''}: TensorRT {share:.1f} % of the flops, "
            f"{count - 1} hand-over{'s' if count != 2 else ''}, {crossing:.3g} MB at opt"
        )


def split(
    lowered: LoweredGraph,
    specs: Sequence[TensorSpec],
    profiles: Sequence[Profile],
    fallback: Fallback = Fallback(),  # noqa: B008
    *,
    kept: Collection[int] = (),
) -> Partition:
    """Decide for each node TensorRT or torch, and form as few segments as the graph allows.

    `kept` are indices of nodes that shall stay in torch (of modules that the manifest names). Raises
    UnsupportedOperators where `fallback.require_full` asks for one engine and a node cannot convert.
    """
    lowered, specs = with_own_outputs(lowered), named(specs, lowered)
    shapes = infer(lowered, specs, profiles)
    found = support(lowered, specs, profiles, shapes, ops=fallback.ops, kept=kept)
    if found.refused and fallback.require_full:
        raise UnsupportedOperators(list(found.refused.values()))
    seen = view(lowered.graph)
    flops = shapes.flops
    kinds = [TORCH if index in found.refused else TENSORRT for index in seen.work]
    kinds = melt(kinds, seen.parents, [1.0] * len(kinds), fallback.min_block_size)
    if fallback.min_block_size > 1:
        kinds = _melt_islands(seen, kinds, flops, shapes)
    inputs = tuple(str(spec.name) for spec in specs)
    crossing = _Crossing(seen, replace(lowered, inputs=inputs), shapes, profiles, flops)
    segments = crossing.segments(_members(seen, kinds))
    return Partition(segments, tuple(found.refused.values()), found.warnings, inputs, lowered.outputs)


def _members(seen: View, kinds: Sequence[str]) -> list[tuple[str, list[int]]]:
    """(kind, indices of the work nodes) of each segment, in running order."""
    groups: dict[int, list[int]] = {}
    kind_of: dict[int, str] = {}
    for index, kind, number in zip(seen.work, kinds, assign(kinds, seen.parents), strict=True):
        groups.setdefault(number, []).append(index)
        kind_of[number] = kind
    return [(kind_of[number], groups[number]) for number in sorted(groups)]


def _melt_islands(seen: View, kinds: list[str], flops: Sequence[int], shapes: Shapes) -> list[str]:
    """TensorRT segments with torch on both sides whose hand-overs cost more than they save go to torch."""
    members = _members(seen, kinds)
    position = {index: place for place, index in enumerate(seen.work)}
    for number in range(1, len(members) - 1):
        kind, indices = members[number]
        if kind != TENSORRT:
            continue
        crossing = sum(cost.size_in_bytes(shapes, name) for name in inputs_of(seen, closure(seen, indices)))
        if cost.seconds_saved(len(indices), sum(flops[i] for i in indices), crossing) < 0:
            for index in indices:
                kinds[position[index]] = TORCH
    return kinds


class _Crossing:
    """What each segment reads and what others read of it."""

    def __init__(
        self, seen: View, lowered: LoweredGraph, shapes: Shapes, profiles: Sequence[Profile], flops: Sequence[int]
    ) -> None:
        self.seen, self.shapes, self.profiles, self.flops = seen, shapes, tuple(profiles), flops
        self.names = TensorNames(lowered)
        self.model_inputs = frozenset(lowered.inputs)
        self.wanted = {value.debugName() for value in lowered.graph.outputs()}

    def segments(self, groups: Sequence[tuple[str, list[int]]]) -> tuple[Segment, ...]:
        """Every group extracted; what any of them reads is an output of the one that makes it."""
        closures = [closure(self.seen, members) for _, members in groups]
        inputs = [inputs_of(self.seen, indices) for indices in closures]
        self.wanted.update(name for names in inputs for name in names)
        return tuple(self._segment(*group, c, i) for group, c, i in zip(groups, closures, inputs, strict=True))

    def _segment(self, kind: str, members: list[int], indices: list[int], inputs: list[str]) -> Segment:
        produced = [v.debugName() for index in members for v in self.seen.nodes[index].outputs()]
        outputs = [name for name in produced if name in self.wanted]
        own: dict[str, Range] = {}
        lowered = extract(self.seen, indices, inputs, outputs, self.names)
        return Segment(
            kind,
            lowered,
            lowered.inputs,
            lowered.outputs,
            tuple(self._spec(name, own) for name in inputs),
            tuple(self._spec(name, {}) for name in outputs),
            tuple({**profile, **own} for profile in self.profiles),
            tuple(indices),
            len(members),
            sum(self.flops[i] for i in members),
            sum(cost.size_in_bytes(self.shapes, n) for n in inputs if self.names[n] not in self.model_inputs),
        )

    def _spec(self, value: str, own: dict[str, Range]) -> TensorSpec | None:
        """The value's spec; the ranges of axes that are not the user's go into `own`."""
        found = self.shapes.spec(value, self.names[value])
        if found is None:
            return None
        own.update(found[1])
        return found[0]
