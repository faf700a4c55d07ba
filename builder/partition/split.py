"""Partition a lowered graph into segments for TensorRT and for torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from builder.conversion import named_inputs
from builder.errors import TrtBuildError, UnsupportedOperator, UnsupportedOperators
from builder.lowering import LoweredGraph
from builder.manifest import Fallback, Profile, Range, TensorSpec
from builder.partition import cost
from builder.partition.boundary import TensorNames, tensor_name, with_axis
from builder.partition.extract import closure, extract, inputs_of, with_own_outputs
from builder.partition.numbers import numbers_to_tensors
from builder.partition.placement import final_kinds, members
from builder.partition.segments import FREE, NOWHERE, TENSORRT, TORCH
from builder.partition.shapes import Shapes, infer_shapes
from builder.partition.support import Support, support
from builder.partition.unset import set_tensors
from builder.partition.view import Step, View, view
from builder.printable import counted


@dataclass(frozen=True)
class Segment:
    """One segment. `kind` is "tensorrt" or "torch". `inputs` and `outputs` are names of tensors:
    those of the model or of boundary tensors; names are unique in a model. `specs` are those of the
    inputs, `output_specs` those of the outputs (None if a shape depends on data or no endpoint
    supports the dtype, which occurs only for torch). A 0-d boundary tensor has the shape [1] there.
    `indices` are the positions of the segment's nodes in the model's graph, in the order of the
    segment's graph. A node that passes on a number has the position of its producer; a node that
    adds or removes the axis of a 0-d tensor has NOWHERE.
    """

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
    """All segments in execution order, and the reason for each node that stays in torch."""

    segments: tuple[Segment, ...]
    refused: tuple[UnsupportedOperator, ...]
    warnings: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """The names of the model's inputs and outputs in the segments, in the model's order.
    """
    open: tuple[tuple[str, str], ...] = ()
    """(operator, tensor) of each first tensor with a data-dependent shape and without a range in
    the manifest.
    """
    whole: LoweredGraph | None = field(default=None, compare=False, repr=False)
    """The graph that was divided."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """By the name of an output that may be None: its flag, an output that is true if it is a
    tensor.
    """
    too_long: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    """As of LoweredGraph: the outputs of lists whose length is not known."""
    values: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The value of `whole` for each tensor name that a segment reads or computes."""
    uncounted: bool = False
    """Whether flops depend on data: those of a product with a data-dependent shape."""

    def summary(self) -> str:
        """`3 segments: TensorRT 96.4 % of the flops, 2 transitions, 1.2 MB each at opt` (on
        average). Flops of tensors with data-dependent shapes are not known.
        """
        engines = [segment for segment in self.segments if segment.kind == TENSORRT]
        total = sum(segment.flops for segment in self.segments) or 1
        share = 100 * sum(segment.flops for segment in engines) / total
        count = len(self.segments)
        crossing = (
            sum(segment.crossing_bytes for segment in self.segments)
            / 1e6
            / max(count - 1, 1)
        )
        flops = "flops that do not depend on data" if self.uncounted else "flops"
        return (
            f"{counted(count, 'segment')}: TensorRT {share:.1f} % of the {flops},"
            f" {counted(count - 1, 'transition')}, {crossing:.3g}"
            f" MB{' each' if count > 2 else ''} at opt"
        )


def split(
    lowered: LoweredGraph,
    specs: Sequence[TensorSpec],
    profiles: Sequence[Profile],
    fallback: Fallback = Fallback(),  # noqa: B008
    *,
    in_torch: Collection[int] = (),
) -> Partition:
    """Assign each node to TensorRT or torch, and form as few segments as the graph allows.

    `in_torch` are indices of nodes that must stay in torch (modules in the manifest's `fallback`).
    A graph with in-place writes (`as_written`) is one torch segment. Raises UnsupportedOperators if
    `fallback.require_full` requires one engine and a node cannot be converted.
    """
    inferred = Inferred.of(lowered, specs, profiles, fallback.ranges)
    return inferred.split(fallback, in_torch=in_torch)


@dataclass(frozen=True)
class Inferred:
    """A graph with the shapes of its values, which may be split several times.

    `positions` are the former positions of its nodes. `whole` means that torch runs all of it.
    """

    lowered: LoweredGraph
    specs: tuple[TensorSpec, ...]
    positions: tuple[int, ...]
    graph_view: View
    shapes: Shapes
    whole: bool

    @classmethod
    def of(
        cls,
        lowered: LoweredGraph,
        specs: Sequence[TensorSpec],
        profiles: Sequence[Profile],
        ranges: Mapping[str, Range],
    ) -> Inferred:
        """Infer the shapes. `ranges` are those of data-dependent sizes. Raises UsageError for a key
        that matches no tensor.
        """
        whole = bool(lowered.as_written)
        lowered, specs = with_own_outputs(lowered), named_inputs(specs, lowered)
        positions = tuple(numbers_to_tensors(lowered.graph))
        graph_view = view(lowered.graph)
        shapes = _infer(lowered, specs, profiles, graph_view, ranges, by_torch=whole)
        return cls(lowered, tuple(specs), positions, graph_view, shapes, whole)

    def split(self, fallback: Fallback, *, in_torch: Collection[int] = ()) -> Partition:
        """The segments; see `split`."""
        steps = self.graph_view.steps
        if self.whole:
            trial = Support({}, ())
            kinds = [TORCH] * len(steps)
        else:
            trial = support(
                self.lowered,
                self.specs,
                self.shapes,
                ops=fallback.ops,
                in_torch=_moved(in_torch, self.positions),
                steps=steps,
            )
            kinds = _kinds(self.graph_view, trial, self.shapes, fallback)
        inputs = tuple(str(spec.name) for spec in self.specs)
        boundary = _Boundary(
            self.graph_view,
            replace(self.lowered, inputs=inputs),
            self.shapes,
            self.positions,
        )
        return _partition(self.lowered, inputs, boundary, trial, kinds)


def _partition(
    lowered: LoweredGraph,
    inputs: tuple[str, ...],
    boundary: _Boundary,
    trial: Support,
    kinds: Sequence[str],
) -> Partition:
    """Form segments of the steps with these kinds."""
    shapes = boundary.shapes
    segments = boundary.segments(members(boundary.graph_view, kinds))
    unbounded = tuple(
        (kind, tensor_name(name))
        for name, kind in shapes.open.items()
        if name not in shapes.known
    )
    values = {tensor: value for value, tensor in boundary.names.items()}
    return Partition(
        segments,
        tuple(trial.refused.values()),
        trial.warnings,
        inputs,
        lowered.outputs,
        unbounded,
        lowered,
        lowered.flags,
        lowered.too_long,
        lowered.groups,
        values,
        any(_is_uncounted(step, shapes) for step in boundary.graph_view.steps),
    )


_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "linear matmul mm bmm addmm baddbmm _convolution scaled_dot_product_attention"
    ).split()
)


def _is_uncounted(step: Step, shapes: Shapes) -> bool:
    """Whether the node is a product, and its shape is not known."""
    return step.node.kind() in _PRODUCTS and not shapes.known.keys() >= set(
        step.outputs
    )


def _kinds(
    graph_view: View, trial: Support, shapes: Shapes, fallback: Fallback
) -> list[str]:
    """TENSORRT or TORCH for each step of the graph. Raises UnsupportedOperators; see `split`."""
    if trial.refused and fallback.require_full:
        raise UnsupportedOperators(list(trial.refused.values()))
    kinds = [_kind(step, index, trial) for index, step in enumerate(graph_view.steps)]
    return final_kinds(graph_view, kinds, shapes, fallback.min_block_size)


def _moved(in_torch: Collection[int], positions: Sequence[int]) -> set[int]:
    """The indices of the nodes `in_torch` in the graph that `numbers_to_tensors` rewrote. If
    several nodes have one former position, the first.
    """
    indices = set()
    previous = None
    for index, position in enumerate(positions):
        if position in in_torch and position != previous:
            indices.add(index)
        previous = position
    return indices


def _infer(
    lowered: LoweredGraph,
    specs: Sequence[TensorSpec],
    profiles: Sequence[Profile],
    graph_view: View,
    ranges: Mapping[str, Range],
    *,
    by_torch: bool,
) -> Shapes:
    """The shapes of the graph's values. For a graph that torch runs as a whole, none if they cannot
    be inferred; it can still be served.
    """
    try:
        return infer_shapes(lowered, specs, profiles, graph_view.steps, ranges)
    except TrtBuildError:
        raise
    except Exception:
        if not by_torch:
            raise
        return Shapes((), {}, tuple(profiles), (0,) * len(graph_view.steps), {})


def _kind(step: Step, index: int, trial: Support) -> str:
    if step.is_free:
        return FREE
    return TORCH if index in trial.refused else TENSORRT


class _Boundary:
    """The boundary tensors: the values that each segment reads, and those that others read from
    it.
    """

    def __init__(
        self,
        graph_view: View,
        lowered: LoweredGraph,
        shapes: Shapes,
        positions: Sequence[int],
    ) -> None:
        self.graph_view = graph_view
        self.shapes = shapes
        self.profiles = shapes.profiles
        self.flops = shapes.flops
        self.positions = positions
        self.names = TensorNames(lowered)
        self.model_inputs = frozenset(lowered.inputs)
        self.endpoints = {
            value.debugName()
            for side in ("inputs", "outputs")
            for value in getattr(lowered.graph, side)()
        }
        self.crossing = {value.debugName() for value in lowered.graph.outputs()}

    def segments(self, groups: Sequence[tuple[str, list[int]]]) -> tuple[Segment, ...]:
        """Extract every group.

        A value that another group reads is an output of its producer's group.
        """
        closures = [closure(self.graph_view, members) for _, members in groups]
        inputs = [inputs_of(self.graph_view, indices) for indices in closures]
        self.crossing.update(name for names in inputs for name in names)
        return tuple(
            self._segment(*group, indices, names)
            for group, indices, names in zip(groups, closures, inputs, strict=True)
        )

    def _segment(
        self, kind: str, members: list[int], indices: list[int], inputs: list[str]
    ) -> Segment:
        produced = [
            name for index in members for name in self.graph_view.steps[index].outputs
        ]
        outputs = [name for name in produced if name in self.crossing]
        new_ranges: dict[str, Range] = {}
        lowered = extract(self.graph_view, indices, inputs, outputs, self.names)
        if kind == TORCH:
            set_tensors(lowered.graph, [self._zeros(name) for name in outputs])
        sides = [[self._is_bare(name) for name in names] for names in (inputs, outputs)]
        front, back = with_axis(lowered.graph, *sides)
        positions = [self.positions[index] for index in indices]
        crossing = [
            name for name in inputs if self.names[name] not in self.model_inputs
        ]
        return Segment(
            kind,
            lowered,
            lowered.inputs,
            lowered.outputs,
            tuple(self._spec(name, new_ranges) for name in inputs),
            tuple(self._spec(name, {}) for name in outputs),
            tuple({**profile, **new_ranges} for profile in self.profiles),
            (*[NOWHERE] * front, *positions, *[NOWHERE] * back),
            len(members),
            sum(self.flops[index] for index in members),
            sum(cost.size_in_bytes(self.shapes, name) for name in crossing),
        )

    def _spec(self, value: str, new_ranges: dict[str, Range]) -> TensorSpec | None:
        """The value's spec. The ranges of axes without a user's name are added to `new_ranges`."""
        result = self.shapes.spec(value, self.names[value])
        if result is None:
            return None
        spec, ranges = result
        new_ranges.update(ranges)
        if self._is_bare(value):
            return replace(spec, shape=(1,))
        return spec

    def _zeros(self, value: str) -> torch.Tensor:
        """Zeros like the value at the first profile's opt, without memory for the elements. Empty
        if its shape is not known.
        """
        result = self.shapes.spec(value, self.names[value])
        if result is None:
            return torch.zeros(0)
        spec, ranges = result
        shape = spec.at({**self.profiles[0], **ranges}, 1)
        return torch.zeros((), dtype=getattr(torch, spec.dtype)).expand(shape)

    def _is_bare(self, value: str) -> bool:
        """Whether the value is a 0-d boundary tensor.

        Inputs and outputs of the model keep their shape.
        """
        _, shapes = self.shapes.known.get(value, (None, ()))
        return value not in self.endpoints and bool(shapes) and not any(shapes)
