"""A partitioned model as a Triton ensemble, with one model for each step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from builder import serving, triton
from builder.errors import EnvironmentProblem, UsageError
from builder.manifest import Batching, ModelSpec
from builder.pipeline import artifacts, libtorch, narrowed
from builder.pipeline.artifacts import (
    SplitModel,
    endpoint,
    inputs_of,
    named,
    outputs_of,
    row_dependence,
    segment_files,
)

if TYPE_CHECKING:
    from builder.triton import EnsembleArtifact, ModelArtifact


def ensemble(model: SplitModel) -> EnsembleArtifact:
    """The ensemble and its steps `<model>.<number>.<kind>`, each a separate model.

    Raises UsageError for a step that the requested backend cannot serve.
    """
    model = narrowed.at_boundaries(model)
    steps = [_step(model, number) for number in range(len(model.segments))]
    steps = batched(
        steps,
        model.spec.batching,
        {axis for profile in model.spec.profiles for axis in profile},
    )
    native = uses_tensorrt_backend(model) and without_pytorch() is None
    steps = [
        _by_backend(model, step, number, native) for number, step in enumerate(steps)
    ]
    return triton.EnsembleArtifact(
        spec=named(model),
        inputs=inputs_of(model),
        outputs=outputs_of(model),
        profiles=model.spec.profiles,
        steps=tuple(steps),
        goldens=model.goldens,
    )


def uses_tensorrt_backend(model: SplitModel) -> bool:
    """Whether Triton's TensorRT backend serves an engine of the model."""
    return model.serve_as != "python" and any(
        plan and plan.facts.get("flavor") == "tensorrt" for plan in model.plans
    )


def without_pytorch() -> str | None:
    """The tritonserver of this machine, if its backend folder has no PyTorch backend.

    None if it has one or there is no server: Triton's container images have it. The server of
    nvidia-pytriton is ignored: it has no TensorRT backend, so such a repository is not for it.
    """

    try:
        server = serving.find("path")
    except EnvironmentProblem:
        return None
    known = server.backends()
    if known is None or "pytorch" in known:
        return None
    return str(server.executable)


def _step(model: SplitModel, number: int) -> ModelArtifact:
    segment = model.segments[number]
    conversion = model.partitioned.conversions[number]
    plan = model.plans[number]
    name = f"{model.spec.name}.{number}.{segment.kind}"
    specs = tuple(spec for spec in segment.specs if spec is not None)
    spec = replace(
        model.spec,
        name=name,
        inputs=specs,
        outputs=segment.outputs,
        profiles=segment.profiles,
        batching=Batching(),
    )
    if conversion is not None and plan is not None:
        artifact = artifacts.of_conversion(
            spec, conversion, plan, model.segment_goldens[number], model.serve_as
        )
        return replace(
            artifact,
            step_of=model.spec.name,
            row_dependence=row_dependence(model, [segment]),
        )
    return _torch_step(model, number, spec)


def _by_backend(
    model: SplitModel, step: ModelArtifact, number: int, native: bool
) -> ModelArtifact:
    """A torch step as a model of its backend; other steps are not changed. `native`: Triton's own
    backends serve the model.
    """
    segment = model.segments[number]
    torch_steps = model.torch_steps
    if step.plan or torch_steps == "python" or (torch_steps == "auto" and not native):
        return step
    reason = libtorch.why_not(step, segment.lowered)
    if reason is None:
        return libtorch.converted(step, segment.lowered)
    if torch_steps == "auto":
        return step
    raise UsageError(
        f"model {model.spec.name!r}: Triton's PyTorch backend cannot serve step {step.spec.name}:"
        f" {reason}",
        fix="use --torch-steps auto: the Python runtime then serves the step",
    )


def _torch_step(model: SplitModel, number: int, spec: ModelSpec) -> ModelArtifact:
    segment = model.segments[number]
    goldens = model.segment_goldens[number]
    outputs = zip(segment.outputs, segment.output_specs, strict=True)
    return triton.ModelArtifact(
        spec=spec,
        inputs=tuple(
            endpoint(tensor_spec, str(tensor_spec.name), goldens)
            for tensor_spec in spec.inputs
        ),
        outputs=tuple(
            endpoint(tensor_spec, name, goldens) for name, tensor_spec in outputs
        ),
        profiles=spec.profiles,
        plan=None,
        plan_facts={},
        lowered=b"",
        goldens=goldens,
        serve_as="python",
        segments=(segment_files(segment, None, None),),
        step_of=model.spec.name,
        row_dependence=row_dependence(model, [segment]),
    )


def batched(
    steps: list[ModelArtifact], settings: Batching, axes: Collection[str]
) -> list[ModelArtifact]:
    """The steps with the manifest's batching settings, if each can batch along one of the model's
    `axes`.

    If not all can, the batch is an ordinary axis between the steps. Triton cannot express this for
    a tensor without another axis, so a step with one does not batch.
    """
    able = [
        settings.enabled is not False
        and _by_own_axis(step, axes)
        and triton.batching.choose(step).max_batch_size > 0
        for step in steps
    ]
    whole = all(able)
    return [
        replace(
            step,
            spec=replace(
                step.spec, batching=_step_batching(step, settings, can, whole)
            ),
        )
        for step, can in zip(steps, able, strict=True)
    ]


def _by_own_axis(step: ModelArtifact, axes: Collection[str]) -> bool:
    """Whether the batch axis is an axis of the model. Requests are not rows of an axis that is
    created inside the model, such as the number of found elements.
    """
    return all(spec.shape and spec.shape[0] in axes for spec in step.spec.inputs)


def _step_batching(
    step: ModelArtifact, settings: Batching, can: bool, whole: bool
) -> Batching:
    endpoints = (*step.inputs, *step.outputs)
    has_vectors = any(len(endpoint.shape) == 1 for endpoint in endpoints)
    if not can or (not whole and has_vectors):
        return Batching(enabled=False)
    return replace(settings, enabled=None)
