"""Which layout a model in pieces gets: fused into one Python-backend model, or a Triton ensemble of
steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import PublishError, UsageError
from builder.pipeline.artifacts import SplitModel, fused
from builder.pipeline.ensembles import ensemble, natively, without_pytorch

if TYPE_CHECKING:
    from builder.partition import Segment
    from builder.triton import EnsembleArtifact, ModelArtifact


def artifact(
    model: SplitModel, layout: str, serve_as: str, torch_steps: str = "auto"
) -> tuple[ModelArtifact | EnsembleArtifact, str]:
    """What is published for the layout, and in words why that one.

    What is one piece, torch's alone, is one model in every layout, as an engine alone is. Raises
    UsageError where an ensemble is demanded of a model whose values cannot cross between Triton
    models, and where a golden is outside of what `fallback.ranges` says.
    """
    _within_ranges(model)
    reason = why_not_ensemble(model)
    if model.spec.pad and not reason:
        reason = "`pad` needs one process, which pads inputs and crops outputs"
    if layout == "ensemble" and reason and len(model.segments) > 1:
        raise UsageError(
            f"model {model.spec.name!r} cannot be an ensemble: {reason}",
            fix="--layout fused, which serves it in one",
        )
    if layout == "ensemble" and not reason:
        steps = torch_served(model, serve_as, torch_steps)
        return ensemble(model, serve_as, torch_steps), "; ".join(["as demanded", *steps])
    reason = reason or (
        "as demanded" if layout == "fused" else why_fused(model, serve_as, torch_steps)
    )
    if reason:
        return fused(model, serve_as), reason
    steps = torch_served(model, serve_as, torch_steps)
    reason = "the transitions cost little beside the engines' work"
    return ensemble(model, serve_as, torch_steps), "; ".join([reason, *steps])


def torch_served(model: SplitModel, serve_as: str, torch_steps: str) -> list[str]:
    """What is said of the torch steps where the server of this machine lacks the PyTorch backend
    that would serve them.
    """
    asked = torch_steps == "pytorch" or (torch_steps == "auto" and natively(model, serve_as))
    server = without_pytorch() if asked else None
    if server is None:
        return []
    if torch_steps == "pytorch":
        return [f"{server} has no PyTorch backend, which the torch steps are for"]
    return [f"the Python runtime serves the torch steps: {server} has no PyTorch backend"]


def _within_ranges(model: SplitModel) -> None:
    """The sizes that the goldens really have at the borders, against what the segments were cut
    for.
    """
    for segment, goldens in zip(model.segments, model.segment_goldens, strict=True):
        for spec in (spec for spec in segment.specs if spec is not None):
            for golden in goldens:
                for axis, size in zip(spec.shape, golden.inputs[str(spec.name)].shape, strict=True):
                    spans = [
                        {**spec.dims, **profile}[axis]
                        for profile in segment.profiles
                        if isinstance(axis, str)
                    ]
                    if spans and not any(low <= size <= high for low, _, high in spans):
                        allowed = " or ".join(f"{low} to {high}" for low, _, high in spans)
                        raise UsageError(
                            f"model {model.spec.name!r}: axis {axis} of {spec.name} is {size} long"
                            f" in golden {golden.name}, and its declared range is {allowed}",
                            fix="widen the range in fallback.ranges",
                        )


def why_not_ensemble(model: SplitModel) -> str | None:
    """What keeps Triton from passing this model's values from one model to the next."""
    if len(model.segments) == 1:
        return "it is one piece"
    if flags := model.pieces.partition.flags:
        return f"output {next(iter(flags))!r} may be None, and a step must give all of its outputs"
    if model.spec.server_state:
        names = ", ".join(state.input for state in model.spec.server_state)
        return (
            f"the server keeps its state ({names}), which one process must hold; --state explicit"
            " allows it"
        )
    for number, segment in enumerate(model.segments):
        if reason := _why_no_step(number, segment):
            return reason
    read = {name for segment in model.segments for name in segment.inputs}
    unread = [name for name in model.pieces.partition.inputs if name not in read]
    if unread:
        return f"no segment reads input {', '.join(unread)}, and an ensemble must use every input"
    return None


def _why_no_step(number: int, segment: Segment) -> str | None:
    """What keeps Triton from serving one segment as a model."""
    from builder.lowering import ir

    loose = [name for name, spec in zip(segment.inputs, segment.specs, strict=True) if spec is None]
    if loose:
        return (
            f"the shape of {', '.join(loose)}, which segment {number} reads, depends on data, "
            "or no endpoint has its element type"
        )
    if random := ir.random_operator(segment.lowered.graph):
        return (
            f"segment {number} hands on what {random} gives, other numbers each time, which no"
            " step is held to"
        )
    if not segment.inputs:
        return (
            f"segment {number} ({segment.kind}) reads nothing, and Triton has no model without"
            " inputs"
        )
    return None


def why_fused(model: SplitModel, serve_as: str, torch_steps: str = "auto") -> str | None:
    """The rule of `auto` (docs/partition.md): fused, unless Triton's own TensorRT backend serves
    the engines and the transitions is less than a tenth of what the model computes.
    """
    from builder.partition import cost

    if model.pieces.parts:
        return "its branches contain engines, and only one process can choose between them"
    flavours = {plan.facts.get("flavour") for plan in model.plans if plan}
    if serve_as == "python" or "tensorrt" not in flavours:
        return "Triton's TensorRT backend would serve none of its steps"
    computes = cost.compute_seconds(sum(segment.flops for segment in model.segments))
    hands_over = cost.step_seconds(
        len(model.segments), sum(segment.crossing_bytes for segment in model.segments)
    )
    if hands_over > cost.STEP_SHARE * computes:
        return (
            f"{len(model.segments)} steps would cost {hands_over * 1e3:.2g} ms, its work"
            f" {computes * 1e3:.2g} ms"
        )
    return _refused(model, serve_as, torch_steps)


def _refused(model: SplitModel, serve_as: str, torch_steps: str) -> str | None:
    """What would keep the ensemble from being published: some types and shapes no config can
    say.
    """
    from builder import triton
    from builder.triton import ensemble_config

    try:
        made = ensemble(model, serve_as, torch_steps)
        ensemble_config(made, {step.spec.name: triton.config(step) for step in made.steps})
    except PublishError as refusal:
        return f"Triton could not serve its steps: {refusal.message}"
    return None
