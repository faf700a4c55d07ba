"""A model in pieces, as artifacts: fused into one Python-backend model, or as a Triton ensemble of steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.errors import PublishError, UsageError
from builder.manifest.spec import Batching, ModelSpec, Profile, TensorSpec
from builder.repository import arms, libtorch, mixing, single
from builder.repository.cut import Pieces

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.engine import Plan
    from builder.lowering import LoweredGraph
    from builder.partition import Segment
    from builder.triton import IO, BranchFiles, EnsembleArtifact, Golden, ModelArtifact, SegmentFiles

LAYOUTS = ("auto", "ensemble", "fused")


@dataclass(frozen=True)
class Cut:
    """Everything that is known of a model in pieces: `plans` and `hops` (the goldens of each segment) are parallel to
    the segments, a plan is None where torch runs the segment."""

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


def artifact(
    cut: Cut, layout: str, serve_as: str, torch_steps: str = "auto"
) -> tuple[ModelArtifact | EnsembleArtifact, str]:
    """What is published for the layout, and in words why that one.

    Raises UsageError where an ensemble is demanded of a model whose values cannot cross between Triton models, and
    where a golden is outside of what `fallback.ranges` says.
    """
    _within_ranges(cut)
    reason = why_not_ensemble(cut)
    if layout == "ensemble" and reason:
        raise UsageError(
            f"model {cut.spec.name!r} cannot be an ensemble: {reason}", fix="--layout fused, which serves it in one"
        )
    if layout == "ensemble":
        return ensemble(cut, serve_as, torch_steps), "as demanded"
    reason = reason or ("as demanded" if layout == "fused" else why_fused(cut, serve_as, torch_steps))
    if reason:
        return fused(cut, serve_as), reason
    return ensemble(cut, serve_as, torch_steps), "the hand-overs cost little beside the engines' work"


def _within_ranges(cut: Cut) -> None:
    """The sizes that the goldens really have at the borders, against what the segments were cut for."""
    for segment, goldens in zip(cut.segments, cut.hops, strict=True):
        for spec in (spec for spec in segment.specs if spec is not None):
            for golden in goldens:
                for axis, size in zip(spec.shape, golden.inputs[str(spec.name)].shape, strict=True):
                    spans = [{**spec.dims, **profile}[axis] for profile in segment.profiles if isinstance(axis, str)]
                    if spans and not any(low <= size <= high for low, _, high in spans):
                        allowed = " or ".join(f"{low} to {high}" for low, _, high in spans)
                        raise UsageError(
                            f"model {cut.spec.name!r}: axis {axis} of {spec.name} is {size} long in golden "
                            f"{golden.name}, and what is said of it is {allowed}",
                            fix="widen the range in fallback.ranges",
                        )


def why_not_ensemble(cut: Cut) -> str | None:
    """What keeps Triton from passing this model's values from one model to the next."""
    if len(cut.segments) == 1:
        return "it is one piece"
    if cut.spec.server_state:
        names = ", ".join(state.input for state in cut.spec.server_state)
        return f"the server keeps its state ({names}), which one process must hold; --state explicit allows it"
    for number, segment in enumerate(cut.segments):
        loose = [name for name, spec in zip(segment.inputs, segment.specs, strict=True) if spec is None]
        if loose:
            return (
                f"the shape of {', '.join(loose)}, which segment {number} reads, depends on data, "
                "or no endpoint has its element type"
            )
        if not segment.inputs:
            return f"segment {number} ({segment.kind}) reads nothing, and Triton has no model without inputs"
    read = {name for segment in cut.segments for name in segment.inputs}
    unread = [name for name in cut.pieces.partition.inputs if name not in read]
    return f"no segment reads input {', '.join(unread)}, and an ensemble must use every input" if unread else None


def why_fused(cut: Cut, serve_as: str, torch_steps: str = "auto") -> str | None:
    """The rule of `auto` (docs/partition.md): fused, unless Triton's own TensorRT backend serves the engines and what
    the hand-overs cost is less than a tenth of what the model computes."""
    from builder.partition import cost

    if cut.pieces.parts:
        return "the arms of its branches hold engines, and only one process can choose between them"
    flavours = {plan.facts.get("flavour") for plan in cut.plans if plan}
    if serve_as == "python" or "tensorrt" not in flavours:
        return "Triton's TensorRT backend would serve none of its steps"
    computes = cost.compute_seconds(sum(segment.flops for segment in cut.segments))
    hands_over = cost.step_seconds(len(cut.segments), sum(segment.crossing_bytes for segment in cut.segments))
    if hands_over > cost.STEP_SHARE * computes:
        return f"{len(cut.segments)} steps would cost {hands_over * 1e3:.2g} ms, its work {computes * 1e3:.2g} ms"
    try:
        ensemble(cut, serve_as, torch_steps)
    except PublishError as refusal:
        return f"Triton could not serve its steps: {refusal.message}"
    return None


def fused(cut: Cut, serve_as: str) -> ModelArtifact:
    """One model whose runtime runs all segments in one process."""
    from builder import triton

    facts = next((plan.facts for plan in (*cut.plans, *cut.arm_plans.values()) if plan), {})
    return triton.ModelArtifact(
        spec=_named(cut),
        inputs=_inputs(cut),
        outputs=_outputs(cut),
        profiles=cut.spec.profiles,
        plan=None,
        plan_facts={key: facts[key] for key in ("flavour", "tensorrt", "compute_capabilities") if key in facts},
        lowered=b"",
        goldens=cut.goldens,
        serve_as=serve_as,
        segments=_pieces(cut.pieces, cut.plans, cut.arm_plans),
        mixes=_mixes(cut, cut.segments),
    )


def _pieces(
    pieces: Pieces, plans: Sequence[Plan | None], arm_plans: Mapping[arms.Place, Plan], place: arms.Place = ()
) -> tuple[SegmentFiles, ...]:
    """Every segment's files; of torch segments with engines in the arms of branches, those of their parts."""
    found = map(_files, pieces.partition.segments, pieces.conversions, plans)
    return tuple(
        replace(files, parts=_parts(pieces.parts.get(number, ()), arm_plans, (*place, number)))
        for number, files in enumerate(found)
    )


def _parts(
    parts: Sequence[LoweredGraph | arms.Taken], plans: Mapping[arms.Place, Plan], place: arms.Place
) -> tuple[SegmentFiles | BranchFiles, ...]:
    from builder.triton import BranchFiles, SegmentFiles

    found: list[SegmentFiles | BranchFiles] = []
    for number, part in enumerate(parts):
        if not isinstance(part, arms.Taken):
            found.append(SegmentFiles("torch", part.inputs, part.outputs, single.saved(part)))
            continue
        condition, read = part.branch.condition, tuple(part.branch.values)
        both = [_arm(arm, plans, (*place, number, index)) for index, arm in enumerate(part.arms)]
        outputs = part.branch.outputs
        found.append(BranchFiles(single.saved(condition), condition.inputs, read, outputs, (both[0], both[1])))
    return tuple(found)


def _arm(pieces: Pieces, plans: Mapping[arms.Place, Plan], place: arms.Place) -> tuple[SegmentFiles, ...]:
    own = [plans.get((*place, number)) for number in range(len(pieces.conversions))]
    return _pieces(pieces, own, plans, place)


def _files(segment: Segment, conversion: Conversion | None, plan: Plan | None) -> SegmentFiles:
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
    return {str(spec.name): (spec.at(profile, 0), spec.at(profile, 1), spec.at(profile, 2)) for spec in specs}


def ensemble(cut: Cut, serve_as: str, torch_steps: str = "auto") -> EnsembleArtifact:
    """The steps `<model>.<number>.<kind>`, each a model of its own, and what joins them.

    `torch_steps` says what serves those of torch: "pytorch" Triton's PyTorch backend (UsageError for one that it cannot
    serve), "python" our runtime, "auto" the former where it can and Triton's TensorRT backend serves the engines.
    """
    from builder import triton

    steps = [_step(cut, number, serve_as) for number in range(len(cut.segments))]
    steps = _batched(steps, cut.spec.batching, {axis for p in cut.spec.profiles for axis in p})
    native = serve_as != "python" and any(plan and plan.facts.get("flavour") == "tensorrt" for plan in cut.plans)
    steps = [_by_backend(cut, step, number, torch_steps, native) for number, step in enumerate(steps)]
    result = triton.EnsembleArtifact(
        spec=_named(cut),
        inputs=_inputs(cut),
        outputs=_outputs(cut),
        profiles=cut.spec.profiles,
        steps=tuple(steps),
        goldens=cut.goldens,
    )
    return result


def _step(cut: Cut, number: int, serve_as: str) -> ModelArtifact:
    segment, conversion, plan = cut.segments[number], cut.pieces.conversions[number], cut.plans[number]
    name = f"{cut.spec.name}.{number}.{segment.kind}"
    specs = tuple(spec for spec in segment.specs if spec is not None)
    spec = replace(
        cut.spec, name=name, inputs=specs, outputs=segment.outputs, profiles=segment.profiles, batching=Batching()
    )
    if conversion is not None and plan is not None:
        made = single.artifact(spec, conversion, plan, cut.hops[number], serve_as)
        return replace(made, step_of=cut.spec.name, mixes=_mixes(cut, [segment]))
    return _torch_step(cut, number, spec)


def _by_backend(cut: Cut, step: ModelArtifact, number: int, torch_steps: str, native: bool) -> ModelArtifact:
    """A torch step as a model of the backend that is to serve it; others as they are. `native`: Triton's TensorRT
    backend serves the engines."""
    segment = cut.segments[number]
    if step.plan or torch_steps == "python" or (torch_steps == "auto" and not native):
        return step
    reason = libtorch.why_not(step, segment.lowered)
    if reason is None:
        return libtorch.converted(step, segment.lowered)
    if torch_steps == "auto":
        return step
    raise UsageError(
        f"model {cut.spec.name!r}: Triton's PyTorch backend cannot serve step {step.spec.name}: {reason}",
        fix="--torch-steps auto, which lets our Python runtime serve such a step",
    )


def _torch_step(cut: Cut, number: int, spec: ModelSpec) -> ModelArtifact:
    from builder import triton

    segment, goldens = cut.segments[number], cut.hops[number]
    outputs = zip(segment.outputs, segment.output_specs, strict=True)
    return triton.ModelArtifact(
        spec=spec,
        inputs=tuple(_io(s, str(s.name), goldens) for s in spec.inputs),
        outputs=tuple(_io(s, name, goldens) for name, s in outputs),
        profiles=spec.profiles,
        plan=None,
        plan_facts={},
        lowered=b"",
        goldens=goldens,
        serve_as="python",
        segments=(_files(segment, None, None),),
        step_of=cut.spec.name,
        mixes=_mixes(cut, [segment]),
    )


def _mixes(cut: Cut, segments: Sequence[Segment]) -> str | None:
    """Why requests must not be joined, unless the manifest asks for it in so many words."""
    if cut.spec.batching.enabled:
        return None
    return next(filter(None, (mixing.decision_on_data(segment.lowered.graph) for segment in segments)), None)


def _batched(steps: list[ModelArtifact], wanted: Batching, axes: Collection[str]) -> list[ModelArtifact]:
    """The steps with the manifest's wishes where each can batch, by one of the model's own `axes`.

    Where not all can, the batch is an axis like any other between them, which Triton cannot say of a tensor that has no
    other: a step with one does not batch then.
    """
    from builder.triton import batching

    able = [
        wanted.enabled is not False and _by_own_axis(step, axes) and batching.choose(step).max_batch_size > 0
        for step in steps
    ]
    whole = all(able)
    return [
        replace(step, spec=replace(step.spec, batching=_wishes(step, wanted, can, whole)))
        for step, can in zip(steps, able, strict=True)
    ]


def _by_own_axis(step: ModelArtifact, axes: Collection[str]) -> bool:
    """Not by one that is made inside the model, as of what was found: requests are no rows of that."""
    return all(spec.shape and spec.shape[0] in axes for spec in step.spec.inputs)


def _wishes(step: ModelArtifact, wanted: Batching, can: bool, whole: bool) -> Batching:
    if not can or (not whole and any(len(io.shape) == 1 for io in (*step.inputs, *step.outputs))):
        return Batching(enabled=False)
    return replace(wanted, enabled=None)


def _named(cut: Cut) -> ModelSpec:
    """The spec with a name for each input, as the segments have it."""
    names = cut.pieces.partition.inputs
    return replace(cut.spec, inputs=tuple(replace(s, name=n) for s, n in zip(cut.spec.inputs, names, strict=True)))


def _inputs(cut: Cut) -> tuple[IO, ...]:
    return tuple(_io(spec, str(spec.name), cut.goldens) for spec in _named(cut).inputs)


def _outputs(cut: Cut) -> tuple[IO, ...]:
    known: Mapping[str, TensorSpec | None] = {
        name: spec for s in cut.segments for name, spec in zip(s.outputs, s.output_specs, strict=True)
    }
    return tuple(_io(known[name], name, cut.goldens) for name in cut.pieces.partition.outputs)


def _io(spec: TensorSpec | None, name: str, goldens: Sequence[Golden]) -> IO:
    """The tensor as inferred; where its shape depends on data, of the goldens' rank and with every axis dynamic."""
    from builder.triton import IO
    from builder.triton.dtypes import by_numpy

    if spec is not None:
        return IO(name, spec.dtype, tuple(-1 if isinstance(axis, str) else axis for axis in spec.shape))
    recorded = [side[name] for golden in goldens for side in (golden.inputs, golden.outputs) if name in side]
    ranks, known = {array.ndim for array in recorded}, by_numpy(recorded[0].dtype)
    if len(ranks) != 1 or known is None:
        raise PublishError(
            f"output {name!r} has no fixed number of axes or element type: {recorded[0].dtype}, axes {sorted(ranks)}",
            fix="return a tensor of one rank and of a type that Triton has",
        )
    return IO(name, known.name, (-1,) * ranks.pop())


def plan_bytes(cut: Cut) -> int:
    """Of all plans."""
    return sum(len(plan.data) for plan in (*cut.plans, *cut.arm_plans.values()) if plan)


def layers(cut: Cut) -> int:
    """Of all networks."""
    return sum(int(plan.facts["layers"]) for plan in (*cut.plans, *cut.arm_plans.values()) if plan)
