"""The layout of a partitioned model: fused into one Python-backend model, or a Triton ensemble."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import lowering, partition, triton
from builder.errors import PublishError, UsageError
from builder.pipeline.artifacts import SplitModel, fused
from builder.pipeline.ensembles import ensemble, uses_tensorrt_backend, without_pytorch

if TYPE_CHECKING:
    from builder.manifest import TensorSpec
    from builder.partition import Segment
    from builder.triton import EnsembleArtifact, Golden, ModelArtifact


def artifact(
    model: SplitModel, layout: str
) -> tuple[ModelArtifact | EnsembleArtifact, str]:
    """The artifact for the layout, and the reason for the layout.

    A model of one segment is one Triton model in every layout. Raises UsageError if an ensemble is
    requested and the boundary values cannot be passed between Triton models, or a golden exceeds
    `fallback.ranges`.
    """
    _within_ranges(model)
    reason = why_not_ensemble(model)
    if model.spec.pad and not reason:
        reason = "`pad` needs one process, which pads inputs and crops outputs"
    if model.spec.defaults and not reason:
        reason = "`default` needs one process, which fills in the inputs that a request leaves out"
    why_ensemble = "the transitions cost little compared with the engines' work"
    if layout == "ensemble":
        if reason and len(model.segments) > 1:
            raise UsageError(
                f"model {model.spec.name!r} cannot be an ensemble: {reason}",
                fix="use --layout fused",
            )
        why_ensemble = "as requested"
    elif not reason:
        reason = "as requested" if layout == "fused" else why_fused(model)
    if reason:
        return fused(model), reason
    return ensemble(model), "; ".join([why_ensemble, *torch_served(model)])


def torch_served(model: SplitModel) -> list[str]:
    """The reason why the Python runtime serves the torch steps, if the server of this machine has
    no PyTorch backend.
    """
    requested = model.torch_steps == "pytorch" or (
        model.torch_steps == "auto" and uses_tensorrt_backend(model)
    )
    server = without_pytorch() if requested else None
    if server is None:
        return []
    if model.torch_steps == "pytorch":
        return [f"{server} has no PyTorch backend, which the torch steps require"]
    return [
        f"the Python runtime serves the torch steps: {server} has no PyTorch backend"
    ]


def _within_ranges(model: SplitModel) -> None:
    """Raise UsageError if the size of a boundary tensor in a golden exceeds the range of the
    segments.
    """
    for segment, goldens in zip(model.segments, model.segment_goldens, strict=True):
        specs = [spec for spec in segment.specs if spec is not None]
        for spec in specs:
            for golden in goldens:
                _check_sizes(model.spec.name, segment, spec, golden)


def _check_sizes(
    model_name: str, segment: Segment, spec: TensorSpec, golden: Golden
) -> None:
    shape = golden.inputs[str(spec.name)].shape
    for axis, size in zip(spec.shape, shape, strict=True):
        if isinstance(axis, int):
            continue
        ranges = ({**spec.dims, **profile} for profile in segment.profiles)
        spans = [by_axis[axis] for by_axis in ranges]
        if not spans or any(low <= size <= high for low, _, high in spans):
            continue
        allowed = " or ".join(f"{low} to {high}" for low, _, high in spans)
        raise UsageError(
            f"model {model_name!r}: axis {axis} of {spec.name} has size "
            f"{size} in golden {golden.name}, and its declared range is {allowed}",
            fix="widen the range in fallback.ranges",
        )


def why_not_ensemble(model: SplitModel) -> str | None:
    """The reason why Triton cannot pass this model's values between models, or None."""
    if len(model.segments) == 1:
        return "it is one segment"
    if flags := model.partitioned.partition.flags:
        return (
            f"output {next(iter(flags))!r} may be None, and a step must return"
            " all of its outputs"
        )
    if model.spec.server_state:
        names = ", ".join(state.input for state in model.spec.server_state)
        return (
            f"the server keeps its state ({names}), which requires one process; --state explicit "
            "allows an ensemble"
        )
    for number, segment in enumerate(model.segments):
        if reason := _why_no_step(number, segment):
            return reason
    read = {name for segment in model.segments for name in segment.inputs}
    unread = [name for name in model.partitioned.partition.inputs if name not in read]
    if unread:
        return f"no segment reads input {', '.join(unread)}, and an ensemble must use every input"
    return None


def _why_no_step(number: int, segment: Segment) -> str | None:
    """What keeps Triton from serving one segment as a model."""
    without_endpoint = [
        name
        for name, spec in zip(segment.inputs, segment.specs, strict=True)
        if spec is None
    ]
    if without_endpoint:
        return (
            f"the shape of {', '.join(without_endpoint)}, which segment {number} reads, depends on"
            " data, or no endpoint has its element type"
        )
    if random := lowering.ir.random_operator(segment.lowered.graph):
        return (
            f"segment {number} passes on random numbers of {random}, so the next step's outputs"
            " cannot be compared with goldens"
        )
    if not segment.inputs:
        return (
            f"segment {number} ({segment.kind}) reads nothing, and Triton has no model without"
            " inputs"
        )
    return None


def why_fused(model: SplitModel) -> str | None:
    """The reason for the fused layout by the rule of `auto` (docs/partition.md), or None: fused,
    unless Triton's own TensorRT backend serves the engines and the transitions take less than a
    tenth of the compute time.
    """
    if model.partitioned.parts:
        return (
            "its branches contain engines, and only one process can choose between them"
        )
    flavors = {plan.facts.get("flavor") for plan in model.plans if plan}
    if model.serve_as == "python" or "tensorrt" not in flavors:
        return "Triton's TensorRT backend would serve none of its steps"
    computes = partition.cost.compute_seconds(
        sum(segment.flops for segment in model.segments)
    )
    transfers = partition.cost.step_seconds(
        len(model.segments), sum(segment.crossing_bytes for segment in model.segments)
    )
    if transfers > partition.cost.STEP_SHARE * computes:
        return (
            f"{len(model.segments)} steps would cost {transfers * 1e3:.2g} ms, its work"
            f" {computes * 1e3:.2g} ms"
        )
    return _refused(model)


def _refused(model: SplitModel) -> str | None:
    """The reason why the ensemble cannot be published, or None: a config cannot express some dtypes
    and shapes.
    """
    try:
        split = ensemble(model)
        triton.ensemble_config(
            split, {step.spec.name: triton.config(step) for step in split.steps}
        )
    except PublishError as refusal:
        return f"Triton could not serve its steps: {refusal.message}"
    return None
