"""Creates a Triton ensemble's config from its steps' configs, and performs Triton's checks of the
graph.

A graph that fails here would fail when the server loads the ensemble. The messages are Triton's, so
that users can look them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

import builder
from builder.errors import PublishError, UsageError
from builder.names import TENSOR_NAME
from builder.triton import section
from builder.triton.artifact import EnsembleArtifact
from builder.triton.check import MODEL_NAME
from builder.triton.config import sha256, template

Configs = Mapping[str, Any]
"""The ModelConfig message of each step by model name, in execution order."""
Names = Mapping[str, Mapping[str, str]]
"""For each step: the ensemble's names of tensors that differ from the step's."""


def ensemble_config(ensemble: EnsembleArtifact, steps: Configs) -> Any:
    """Return the checked ModelConfig message.

    Its batch is the smallest of its steps', 0 if one of them does not batch. Raises PublishError
    with all violations if Triton would reject the graph, and UsageError if the manifest requires
    batching that a step does not support.
    """
    message = template("base.pbtxt")
    message.name = ensemble.spec.name
    message.platform = "ensemble"
    message.max_batch_size = min(step.max_batch_size for step in steps.values())
    _check_batching(ensemble, steps, message.max_batch_size)
    called = {step.spec.name: step.ensemble_names for step in ensemble.steps}
    for names, field, side in (
        ([io.name for io in ensemble.inputs], message.input, "input"),
        ([io.name for io in ensemble.outputs], message.output, "output"),
    ):
        for name in names:
            _endpoint(field.add(), name, side, message.max_batch_size, steps, called)
    for name, step in steps.items():
        _step(message.ensemble_scheduling.step.add(), name, step, called[name])
    _provenance(message, ensemble)
    section.merge_ensemble(message, ensemble.spec)
    check(message, steps)
    return message


def _check_batching(ensemble: EnsembleArtifact, steps: Configs, batch: int) -> None:
    if ensemble.spec.batching.enabled and not batch:
        without = [name for name, step in steps.items() if not step.max_batch_size]
        raise UsageError(
            f"model {ensemble.spec.name!r} cannot be batched by Triton: its steps"
            f" {', '.join(without)} cannot",
            fix="remove batching.enabled, or use --layout fused",
        )


def _endpoint(
    tensor: pb.ModelInput | pb.ModelOutput,
    name: str,
    side: str,
    batch: int,
    steps: Configs,
    called: Names,
) -> None:
    """The ensemble's tensor, with the type and dims of the step that reads or computes it."""
    for step in steps.values():
        for step_tensor in getattr(step, side):
            if called[step.name].get(step_tensor.name, step_tensor.name) == name:
                tensor.name = name
                tensor.data_type = step_tensor.data_type
                tensor.dims.extend(
                    step_tensor.dims if batch else full_dims(step, step_tensor)
                )
                return
    raise PublishError(
        f"ensemble tensor {name!r} of model {side} is not a tensor of a step"
    )


def full_dims(
    step: pb.ModelConfig, tensor: pb.ModelInput | pb.ModelOutput
) -> list[int]:
    """The dims, with Triton's batch first if the step batches."""
    if step.max_batch_size:
        return [-1, *tensor.dims]
    return list(tensor.dims)


def _step(
    entry: pb.ModelEnsembling.Step,
    name: str,
    step: pb.ModelConfig,
    called: Mapping[str, str],
) -> None:
    entry.model_name = name
    entry.model_version = -1
    for tensors, mapping in (
        (step.input, entry.input_map),
        (step.output, entry.output_map),
    ):
        for tensor in tensors:
            mapping[tensor.name] = called.get(tensor.name, tensor.name)


def _provenance(message: pb.ModelConfig, ensemble: EnsembleArtifact) -> None:
    path = ensemble.spec.path
    stated = {
        "version": builder.__version__,
        "serve_as": "ensemble",
        "precision": ensemble.spec.precision,
        "source_sha256": sha256(path.read_bytes()) if path.is_file() else "",
    }
    for key, value in stated.items():
        if value:
            message.parameters[f"trt_build.{key}"].string_value = value


def check(message: pb.ModelConfig, steps: Configs) -> None:
    """Raise one PublishError that lists all violations of Triton's ensemble rules."""
    broken = [text for rule in RULES for text in rule(message, steps)]
    if broken:
        raise PublishError(
            "\n  ".join([f"Triton could not serve ensemble {message.name!r}:", *broken])
        )


def _names(message: pb.ModelConfig, steps: Configs) -> Iterator[str]:
    for name in (message.name, *steps):
        if not MODEL_NAME.fullmatch(name):
            yield f"the name {name!r} is not a folder name of letters, digits, '_', '-' and '.'"
    for tensor in sorted({value for _, value, _ in _edges(message, steps)}):
        if not TENSOR_NAME.fullmatch(tensor):
            yield f"tensor name {tensor!r} has other characters than letters, digits and _ . : -"


def _no_schedulers(message: pb.ModelConfig, steps: Configs) -> Iterator[str]:
    for field in ("instance_group", "model_warmup"):
        if getattr(message, field):
            yield f"{field} must not be set for ensemble '{message.name}'"
    if message.HasField("optimization"):
        yield f"optimization must not be set for ensemble '{message.name}'"


def _mapping_problems(message: pb.ModelConfig, steps: Configs) -> Iterator[str]:
    for step in message.ensemble_scheduling.step:
        if not step.input_map:
            yield (
                f"must specify 'input_map' in step of ensemble '{message.name}' for model"
                f" '{step.model_name}'"
            )
        if not step.output_map:
            yield (
                f"must specify 'output_map' in step of ensemble '{message.name}' for model"
                f" '{step.model_name}'"
            )
        missing = {tensor.name for tensor in steps[step.model_name].input} - set(
            step.input_map
        )
        for name in sorted(missing):
            yield f"ensemble step for model '{step.model_name}' does not map its input '{name}'"


def _connection_problems(message: pb.ModelConfig, steps: Configs) -> Iterator[str]:
    """Check that every input is read and every output computed, and that no tensor is computed
    twice, unread, or read too early.
    """
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    available = set(inputs)
    read = set()
    for step in message.ensemble_scheduling.step:
        for name in step.input_map.values():
            read.add(name)
            if name not in available:
                yield (
                    f"ensemble tensor '{name}' is read by '{step.model_name}' and no step before it"
                    " makes it"
                )
        for name in step.output_map.values():
            if name in available:
                yield f"ensemble tensor '{name}' can appear in an output map only once"
            available.add(name)
    for name in sorted(available - read - outputs):
        yield f"ensemble tensor '{name}' is unused in ensemble '{message.name}'"
    for name in sorted(outputs - available):
        yield f"ensemble output '{name}' is not made by any step"


def _batches(message: pb.ModelConfig, steps: Configs) -> Iterator[str]:
    for name, step in steps.items():
        if 0 < step.max_batch_size < message.max_batch_size:
            yield (
                f"ensemble {message.name} allows maximum batch size {message.max_batch_size}, but"
                f" it contains model {name} which only allows maximum batch size to be"
                f" {step.max_batch_size}"
            )


def _type_problems(message: pb.ModelConfig, steps: Configs) -> Iterator[str]:
    """Triton's 'inconsistent data type' and 'inconsistent shape': dims, or dims with the batch,
    must be equal except for -1.
    """
    first: dict[str, tuple[Any, Any]] = {
        tensor.name: (message, tensor) for tensor in (*message.input, *message.output)
    }
    for owner, name, tensor in _edges(message, steps):
        first_owner, first_tensor = first.setdefault(name, (owner, tensor))
        if tensor.data_type != first_tensor.data_type:
            types = (
                pb.DataType.Name(first_tensor.data_type),
                pb.DataType.Name(tensor.data_type),
            )
            yield (
                f"in ensemble {message.name}, ensemble tensor {name}: inconsistent data type:"
                f" {types[0]} is inferred from model {first_owner.name} while {types[1]} is"
                f" inferred from model {owner.name}"
            )
        first_full = full_dims(first_owner, first_tensor)
        dims_fit = _dims_fit(first_tensor.dims, tensor.dims)
        if not (dims_fit or _dims_fit(first_full, full_dims(owner, tensor))):
            yield (
                f"in ensemble {message.name}, ensemble tensor {name}: inconsistent shape:"
                f" {list(first_tensor.dims)} is inferred from model {first_owner.name} while"
                f" {list(tensor.dims)} is inferred from model {owner.name}"
            )


def _dims_fit(left: Sequence[int], right: Sequence[int]) -> bool:
    return len(left) == len(right) and all(
        left_size == right_size or -1 in (left_size, right_size)
        for left_size, right_size in zip(left, right, strict=True)
    )


def _edges(message: pb.ModelConfig, steps: Configs) -> Iterator[tuple[Any, str, Any]]:
    """Return (step config, ensemble tensor name, step tensor) for every input and output of every
    step.
    """
    for step in message.ensemble_scheduling.step:
        config = steps[step.model_name]
        for tensors, mapping in (
            (config.input, step.input_map),
            (config.output, step.output_map),
        ):
            yield from (
                (config, mapping[tensor.name], tensor)
                for tensor in tensors
                if tensor.name in mapping
            )


Rule = Callable[[Any, Configs], Iterator[str]]
RULES: tuple[Rule, ...] = (
    _names,
    _no_schedulers,
    _mapping_problems,
    _connection_problems,
    _batches,
    _type_problems,
)
