"""Infer the shape and dtype of every value of a lowered graph from the graph and the profiles,
without data.

The graph is interpreted on meta tensors at each profile's min, opt and max, and at probes where the
named axes have different sizes, so that an axis inside the graph is recognized by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch._subclasses.fake_tensor import FakeTensor

from builder.conversion import MISSING
from builder.dtypes import ENDPOINT_DTYPES, name_of
from builder.lowering import LoweredGraph
from builder.manifest import Profile, Range, TensorSpec
from builder.partition import bounds, view
from builder.partition.interpreter import Memory, ShapeInterpreter
from builder.partition.joint_evaluation import JointEvaluation
from builder.partition.view import Step

Sizes = Mapping[str, int]
"""One concrete size for each named axis."""


@dataclass(frozen=True)
class Shapes:
    """The dtype and the shape at every probe of each value, by name. A value with a data-dependent
    shape is absent.
    """

    probes: tuple[Sizes, ...]
    known: Mapping[str, tuple[torch.dtype, tuple[tuple[int, ...], ...]]]
    profiles: tuple[Profile, ...]
    flops: tuple[int, ...] = ()
    """The flops of each top-level node at the first profile's opt; 0 if torch's counter has no
    formula.
    """
    open: Mapping[str, str] = field(default_factory=dict)
    """The first values with data-dependent shapes, by name, with the kind of their node; including
    values with a range.
    """

    def spec(self, value: str, name: str) -> tuple[TensorSpec, dict[str, Range]] | None:
        """The TensorSpec of a value as an input `name` of a segment, and the ranges of axes without
        a name from the user (named `<name>_<axis>`). None if the shape depends on data, the rank
        changes, or the dtype is not supported at endpoints (complex).
        """
        dtype, shapes = self.known.get(value, (None, ()))
        if (
            dtype is None
            or name_of(dtype) not in ENDPOINT_DTYPES
            or len({len(shape) for shape in shapes}) != 1
        ):
            return None
        axes = [
            self._axis(sizes, f"{name}_{position}")
            for position, sizes in enumerate(zip(*shapes, strict=True))
        ]
        spans = zip(axes, zip(*shapes, strict=True), strict=True)
        new_ranges = {
            str(axis): _range(sizes) for axis, sizes in spans if self._is_new(axis)
        }
        dims = {
            axis: new_ranges.get(axis) or self.profiles[0][axis]
            for axis in axes
            if isinstance(axis, str)
        }
        return TensorSpec(name_of(dtype), tuple(axes), dims=dims, name=name), new_ranges

    def _axis(self, sizes: Sequence[int], new_name: str) -> int | str:
        """A static size, the named axis that matches at every probe, or a new name."""
        if len(set(sizes)) == 1:
            return sizes[0]
        names = [
            name
            for name in self.probes[0]
            if all(
                probe[name] == size
                for probe, size in zip(self.probes, sizes, strict=True)
            )
        ]
        if len(names) == 1:
            return names[0]
        return new_name

    def _is_new(self, axis: int | str) -> bool:
        return isinstance(axis, str) and axis not in self.probes[0]


def _range(sizes: Sequence[int]) -> Range:
    """The minimum, optimum and maximum; the second probe is the first profile's opt."""
    return min(sizes), sizes[1], max(sizes)


def infer_shapes(
    lowered: LoweredGraph,
    specs: Sequence[TensorSpec | None],
    profiles: Sequence[Profile],
    steps: Sequence[Step] | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> Shapes:
    """Interpret the graph at every probe; `steps` are its nodes, if already read. A value is known
    if every probe could compute it. `ranges` are those of data-dependent sizes (Fallback.ranges).
    Their axes are in the result's profiles. A spec of None is an input of unknown shape.
    """
    if steps is None:
        steps = view.steps(lowered.graph)
    axes = bounds.axes(steps, ranges or {}, profiles)
    dependent = {axis.name: axis.range for axis in axes.values()}
    profiles = [{**profile, **dependent} for profile in profiles]
    points = probes(profiles)
    memory = Memory()
    interpreters = [
        _interpreter(lowered, specs, sizes, memory, axes) for sizes in points
    ]
    flops = JointEvaluation(interpreters).run(steps)
    runs = [_known_tensors(interpreter) for interpreter in interpreters]
    common = set.intersection(*(set(run) for run in runs))
    tensors = {
        name: (runs[0][name].dtype, tuple(tuple(run[name].shape) for run in runs))
        for name in common
    }
    opened = {name: node.kind() for name, node in interpreters[0].sources.items()}
    bounds.check(ranges or {}, opened)
    at_opt = tuple(counts[1] for counts in flops)
    return Shapes(tuple(points), tensors, tuple(profiles), at_opt, opened)


def probes(profiles: Sequence[Profile]) -> list[Sizes]:
    """Each profile's min, opt and max, and two points inside it with different sizes for the axes,
    as far as their ranges allow.
    """
    points: list[Sizes] = []
    for profile in profiles:
        points += [
            {name: span[index] for name, span in profile.items()} for index in range(3)
        ]
        for step in (1, 2):
            points.append(
                {
                    name: _inside(span, step * k)
                    for k, (name, span) in enumerate(profile.items(), start=1)
                }
            )
    return points


def _inside(span: Range, offset: int) -> int:
    low, _, high = span
    return low + offset % (high - low + 1)


def _interpreter(
    lowered: LoweredGraph,
    specs: Sequence[TensorSpec | None],
    sizes: Sizes,
    memory: Memory,
    axes: Mapping[str, bounds.Axis],
) -> ShapeInterpreter:
    """An interpreter with the graph's inputs as meta tensors, and these sizes for the named
    axes.
    """
    interpreter = ShapeInterpreter(
        memory, {value: sizes[axis.name] for value, axis in axes.items()}
    )
    for value, spec in zip(lowered.graph.inputs(), specs, strict=True):
        if spec is None:
            interpreter.ctx.values[value.debugName()] = MISSING
            continue
        shape = [axis if isinstance(axis, int) else sizes[axis] for axis in spec.shape]
        tensor = torch.empty(shape, dtype=getattr(torch, spec.dtype), device="meta")
        interpreter.ctx.values[value.debugName()] = tensor
    return interpreter


def _known_tensors(interpreter: ShapeInterpreter) -> dict[str, torch.Tensor]:
    """The tensors of all values whose shapes do not depend on data."""
    values = interpreter.ctx.values.items()
    return {
        name: value
        for name, value in values
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    }
