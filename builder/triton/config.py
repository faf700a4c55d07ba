"""Creates a model's ModelConfig: the protobuf message, merged with the files in templates/.

Nothing is left to Triton's auto-completion, which would guess the batch from a plan's first axis.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

import builder
from builder.choices import SERVE_AS
from builder.errors import PublishError, UsageError
from builder.templates import config_templates
from builder.torchscript import sha256 as sha256_of_file
from builder.triton import (
    batching,
    check,
    dtypes,
    graphs,
    instances,
    section,
    sequences,
    warmup,
)
from builder.triton.artifact import IO, EnsembleArtifact, ModelArtifact
from builder.versions import package_version

OPTIONAL_OUTPUTS = "optional_outputs"
"""The parameter with the names of optional outputs, separated by commas."""
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,63}")


def config(artifact: ModelArtifact, *, provenance: bool = True) -> Any:
    """Return the checked ModelConfig message, including the manifest's `triton:` section. Without
    `provenance` no file is hashed, and the message does not say how the model was built.

    Raises PublishError if Triton could not serve the model with it, UsageError for a manifest that
    contradicts it.
    """
    platform = serve_as(artifact)
    choice = batching.choose(artifact)
    message = template("base.pbtxt", f"{platform}.pbtxt")
    message.name = artifact.spec.name
    message.max_batch_size = choice.max_batch_size
    _tensors(message, artifact, platform, choice.max_batch_size)
    _scheduling(message, artifact, platform)
    instances.add(message, artifact, platform)
    graphs.add(message, artifact, platform)
    section.merge(message, artifact.spec, step=artifact.step_of is not None)
    if provenance:
        _provenance(message, artifact, platform)
    message.model_warmup.extend(warmup.samples(artifact, message))
    check.validate(message, artifact)
    return message


def config_warnings(artifact: ModelArtifact | EnsembleArtifact) -> tuple[str, ...]:
    """The warnings about settings that the server may not support, each one once. For an ensemble,
    those of its steps.
    """
    steps = artifact.steps if isinstance(artifact, EnsembleArtifact) else (artifact,)
    texts = [
        text
        for step in steps
        for module in (graphs, instances)
        for text in module.warnings(step, serve_as(step))
    ]
    return tuple(dict.fromkeys(texts))


def config_text(message: pb.ModelConfig) -> str:
    """Return the message as config.pbtxt text. It includes max_batch_size even if it is 0, because
    proto3 omits zeros.
    """
    text = str(text_format.MessageToString(message))
    if message.max_batch_size:
        return text
    head, tensors = text.split("\ninput {", 1)
    return f"{head}\nmax_batch_size: 0\ninput {{{tensors}"


def parse_config(text: str, where: str) -> Any:
    """Parse a config.pbtxt. Raises UsageError with line and column for invalid text."""
    try:
        return text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError as error:
        raise UsageError(f"not a Triton model config: {error}", where=where) from error


def read_config(file: Path) -> Any:
    """Parse the config.pbtxt `file`. Raises UsageError as `parse_config`, OSError, and ValueError
    if it is not UTF-8.
    """
    return parse_config(file.read_text(encoding="utf-8"), str(file))


def serve_as(artifact: ModelArtifact) -> str:
    """Return `tensorrt_plan` or `python`. Auto selects the plan if Triton has a backend for its
    flavor (it has none for RTX). Raises UsageError and PublishError; see `_check_serve_as`.
    """
    _check_serve_as(artifact)
    if artifact.padding or artifact.segments or artifact.spec.defaults:
        return "python"
    if artifact.serve_as == "auto":
        flavor = artifact.plan_facts.get("flavor")
        if artifact.plan and flavor == "tensorrt":
            return "tensorrt_plan"
        return "python"
    return artifact.serve_as


def _check_serve_as(artifact: ModelArtifact) -> None:
    """Raise UsageError for an unknown value, and PublishError if the requested backend cannot serve
    the model.
    """
    name = artifact.spec.name
    serve_as = artifact.serve_as
    # the platforms that can serve an ensemble's torch steps
    if serve_as not in (*SERVE_AS, "pytorch_libtorch"):
        fix = f"use one of {', '.join(SERVE_AS)}"
        raise UsageError(f"unknown serve_as {serve_as!r}", fix=fix)
    without_runtime = serve_as in ("tensorrt_plan", "pytorch_libtorch")
    if artifact.padding and without_runtime:
        raise PublishError(
            f"model {name!r} has `pad`, and only the Python runtime pads inputs",
            fix="use --serve-as python, or remove `pad`",
        )
    if artifact.spec.defaults and without_runtime:
        raise PublishError(
            f"input {next(iter(artifact.spec.defaults))!r} of model {name!r} has a"
            " default, and only the Python runtime fills in missing inputs",
            fix="use --serve-as python, or remove `default`",
        )
    if artifact.segments and serve_as == "tensorrt_plan":
        raise PublishError(
            f"model {name!r} runs in {len(artifact.segments)} segments, which one plan cannot"
            " contain",
            fix="use --layout ensemble, with Triton's TensorRT backend for each engine, or"
            " --serve-as python",
        )
    if serve_as == "tensorrt_plan" and not artifact.plan:
        fix = "build the plan, or use --serve-as python"
        raise PublishError(f"model {name!r} has no plan to serve", fix=fix)


def served_dtypes(artifact: ModelArtifact, platform: str) -> dict[str, str]:
    """The element type of each tensor at the endpoint: the engine's for a plan, the module's for
    the Python runtime.

    They differ if TensorRT lacks the type: float64, or int64 in some versions.
    """
    declared = module_dtypes(artifact)
    if platform == "tensorrt_plan":
        return {**declared, **_engine_dtypes(artifact)}
    return declared


def module_dtypes(artifact: ModelArtifact) -> dict[str, str]:
    """The element type of each tensor in the original module, from the specs, the recorded outputs,
    or else the artifact.
    """
    dtypes_ = {io.name: io.dtype for io in (*artifact.inputs, *artifact.outputs)}
    dtypes_ |= {
        io.name: spec.dtype
        for io, spec in zip(artifact.inputs, artifact.spec.inputs, strict=True)
    }
    recorded = {
        name: array
        for golden in artifact.goldens
        for name, array in golden.outputs.items()
    }
    known = {
        name: dtypes.by_numpy(array.dtype)
        for name, array in recorded.items()
        if name in dtypes_
    }
    return dtypes_ | {name: entry.name for name, entry in known.items() if entry}


def _engine_dtypes(artifact: ModelArtifact) -> dict[str, str]:
    facts = [
        fact
        for side in ("inputs", "outputs")
        for fact in artifact.plan_facts.get(side, ())
    ]
    return {fact["name"]: dtypes.by_tensorrt(fact["dtype"]).name for fact in facts}


def template(*names: str) -> Any:
    """Merge the files in templates/ in order. Single fields of a later part override
    earlier ones.
    """
    folder = config_templates()
    message = pb.ModelConfig()
    for name in names:
        message.MergeFrom(
            parse_config((folder / name).read_text(encoding="utf-8"), name)
        )
    return message


def _tensors(
    message: pb.ModelConfig, artifact: ModelArtifact, platform: str, max_batch: int
) -> None:
    dtype = served_dtypes(artifact, platform)
    sides = (
        (artifact.client_inputs(), message.input),
        (artifact.client_outputs(), message.output),
    )
    for ios, field in sides:
        for io in ios:
            _tensor(field.add(), io, dtype[io.name], max_batch, platform)
    for tensor in message.input:
        tensor.optional = tensor.name in artifact.spec.defaults
    if artifact.padding and max_batch:
        for tensor in message.input:
            tensor.allow_ragged_batch = tensor.name in artifact.padding.values


def _tensor(
    tensor: pb.ModelInput | pb.ModelOutput,
    io: IO,
    dtype: str,
    max_batch: int,
    platform: str,
) -> None:
    """Create a tensor's config. Its dims exclude Triton's batch.

    Triton has no empty dims: a rank without other axes is served as [1]. It has no dims of 0
    either: an axis without elements is served as a dynamic one.
    """
    tensor.name = io.name
    tensor.data_type = pb.DataType.Value(dtypes.by_name(dtype).config)
    dims = io.shape[1:] if max_batch else io.shape
    tensor.dims.extend([dim or -1 for dim in dims or (1,)])
    if not dims and max_batch:
        tensor.reshape.SetInParent()
    if not dims and not max_batch and platform == "tensorrt_plan":
        raise PublishError(
            f"tensor {io.name!r} has no axes, and Triton's TensorRT backend cannot serve such a"
            " tensor without a batch",
            fix="give it one axis in the model, or use --serve-as python",
        )


def _scheduling(
    message: pb.ModelConfig, artifact: ModelArtifact, platform: str
) -> None:
    if artifact.spec.server_state:
        message.ClearField("dynamic_batching")
        sequences.batching(
            message, artifact, served_dtypes(artifact, platform), platform
        )
        return
    if message.max_batch_size < 2:
        message.ClearField("dynamic_batching")
        return
    settings = artifact.spec.batching
    message.dynamic_batching.SetInParent()
    static = [
        size for size in artifact.spec.batch_sizes if 1 < size <= message.max_batch_size
    ]
    message.dynamic_batching.preferred_batch_size.extend(settings.preferred or static)
    message.dynamic_batching.max_queue_delay_microseconds = settings.max_queue_delay_us


def _provenance(
    message: pb.ModelConfig, artifact: ModelArtifact, platform: str
) -> None:
    facts = artifact.plan_facts
    stated = {
        "version": builder.__version__,
        "serve_as": platform,
        "precision": artifact.spec.precision,
        "flavor": facts.get("flavor"),
        "tensorrt_version": tensorrt_version(facts),
        "torch_version": package_version("torch"),
        "plan_sha256": sha256(artifact.plan) if artifact.plan else None,
        "lowered_sha256": sha256(artifact.lowered),
        "source_sha256": _source(artifact),
        OPTIONAL_OUTPUTS: ",".join(artifact.flags),
    }
    for key, value in stated.items():
        if value:
            message.parameters[f"trt_build.{key}"].string_value = str(value)


def _source(artifact: ModelArtifact) -> str | None:
    """The digest of the model's file. None for a step: its name is a digest of its content, and
    must not change when another part of the file does. The ensemble has the digest.
    """
    path = artifact.spec.path
    if path.is_file() and not artifact.step_of:
        return sha256_of_file(path)
    return None


def tensorrt_version(facts: Any) -> str | None:
    """The version of the library that built the plan, from the plan facts: digits and dots.

    None if they name none. Raises ValueError for other text, because the version is written into
    files that others read.
    """
    version = facts.get("tensorrt_version") or facts.get("tensorrt")
    if isinstance(version, (list, tuple)):
        version = ".".join(map(str, version))
    if version is not None and not _VERSION.fullmatch(str(version)):
        raise ValueError(f"{str(version)[:50]!r} is not a version of TensorRT")
    return None if version is None else str(version)


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()
