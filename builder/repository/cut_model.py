"""A model in pieces with all that is known of it, and what every layout publishes of it alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.errors import PublishError
from builder.manifest.spec import ModelSpec, Profile, TensorSpec
from builder.repository import arms, mixing, rows, single
from builder.repository.cut import Pieces

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.engine import Plan
    from builder.partition import Segment
    from builder.triton import IO, Golden, SegmentFiles


@dataclass(frozen=True)
class Cut:
    """Everything that is known of a model in pieces: `plans` and `hops` (the goldens of each
    segment) are parallel to the segments, a plan is None where torch runs the segment.
    """

    spec: ModelSpec
    pieces: Pieces
    plans: tuple[Plan | None, ...]
    goldens: tuple[Golden, ...]
    hops: tuple[tuple[Golden, ...], ...]
    arm_plans: Mapping[arms.Place, Plan] = field(default_factory=dict)
    """Of the engines in the arms of branches; the fused layout alone has them."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.pieces.partition.segments

    @property
    def built(self) -> list[Plan]:
        """Every plan of it, those in the arms of branches last."""
        return [plan for plan in (*self.plans, *self.arm_plans.values()) if plan]


def segment_files(
    segment: Segment, conversion: Conversion | None, plan: Plan | None
) -> SegmentFiles:
    from builder.triton import SegmentFiles

    lowered = single.saved(segment.lowered)
    if conversion is None or plan is None:
        return SegmentFiles(segment.kind, segment.inputs, segment.outputs, lowered)
    dtypes = {str(spec.name): spec.dtype for spec in conversion.inputs}
    made = zip(conversion.outputs, conversion.output_dtypes, strict=True)
    dtypes |= {name: str(dtype).removeprefix("torch.") for name, dtype in made}
    return SegmentFiles(
        segment.kind,
        segment.inputs,
        segment.outputs,
        lowered,
        plan.data,
        plan.facts,
        dtypes,
        tuple(_ranges(conversion.inputs, profile) for profile in conversion.profiles),
    )


def _ranges(specs: Sequence[TensorSpec], profile: Profile) -> dict[str, Any]:
    return {
        str(spec.name): (spec.at(profile, 0), spec.at(profile, 1), spec.at(profile, 2))
        for spec in specs
    }


def mixes(cut: Cut, segments: Sequence[Segment]) -> str | None:
    """Why requests must not be joined, unless the manifest asks for it in so many words."""
    if cut.spec.batching.enabled:
        return None
    decisions = (mixing.decision_on_data(segment.lowered.graph) for segment in segments)
    return next(filter(None, (*decisions, *map(_threshold, segments))), None)


def _threshold(segment: Segment) -> str | None:
    graph = segment.lowered.graph
    read = zip(graph.inputs(), segment.specs, strict=True)
    return rows.one_for_all(
        graph, [value.debugName() for value, spec in read if spec and spec.shape in ((), (1,))]
    )


def named(cut: Cut) -> ModelSpec:
    """The spec with a name for each input, as the segments have it."""
    names = cut.pieces.partition.inputs
    return replace(
        cut.spec,
        inputs=tuple(replace(s, name=n) for s, n in zip(cut.spec.inputs, names, strict=True)),
    )


def inputs_of(cut: Cut) -> tuple[IO, ...]:
    return tuple(endpoint(spec, str(spec.name), cut.goldens) for spec in named(cut).inputs)


def outputs_of(cut: Cut) -> tuple[IO, ...]:
    known: Mapping[str, TensorSpec | None] = {
        name: spec
        for s in cut.segments
        for name, spec in zip(s.outputs, s.output_specs, strict=True)
    }
    return tuple(endpoint(known[name], name, cut.goldens) for name in cut.pieces.partition.outputs)


def endpoint(spec: TensorSpec | None, name: str, goldens: Sequence[Golden]) -> IO:
    """The tensor as inferred; where its shape depends on data, of the goldens' rank and with every
    axis dynamic.
    """
    from builder.triton import IO
    from builder.triton.dtypes import by_numpy

    if spec is not None:
        return IO(
            name, spec.dtype, tuple(-1 if isinstance(axis, str) else axis for axis in spec.shape)
        )
    recorded = [
        side[name] for golden in goldens for side in (golden.inputs, golden.outputs) if name in side
    ]
    ranks, known = {array.ndim for array in recorded}, by_numpy(recorded[0].dtype)
    if len(ranks) != 1 or known is None:
        raise PublishError(
            f"output {name!r} has no fixed number of axes or element type: {recorded[0].dtype},"
            f" axes {sorted(ranks)}",
            fix="return a tensor of one rank and of a type that Triton has",
        )
    return IO(name, known.name, (-1,) * ranks.pop())
