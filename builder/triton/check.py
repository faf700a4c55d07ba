"""Finds configs that Triton would reject or serve incorrectly, before anything is written.

Each rule is one function. If Triton has no check and the first large request would fail, the rule
is stricter than Triton.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import PublishError
from builder.names import TENSOR_NAME
from builder.triton import batching, sequences
from builder.triton.artifact import ModelArtifact
from builder.triton.dtypes import by_config

MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def validate(config: pb.ModelConfig, artifact: ModelArtifact) -> None:
    """Raise one PublishError that lists all violations."""
    broken = [text for rule in RULES for text in rule(config, artifact)]
    if broken:
        raise PublishError(
            "\n  ".join([f"Triton could not serve model {config.name!r}:", *broken])
        )


def _names(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    """A model name must be valid as a folder name.

    TensorRT's backend truncates tensor names at a space, and file names allow no slash.
    """
    if not MODEL_NAME.fullmatch(config.name):
        yield f"the name {config.name!r} is not a folder name of letters, digits, '_', '-' and '.'"
    for tensor in (*config.input, *config.output):
        if not TENSOR_NAME.fullmatch(tensor.name):
            yield (
                f"tensor name {tensor.name!r} has other characters than letters, digits and _ . : -"
            )
    names = [tensor.name for tensor in (*config.input, *config.output)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two tensors are named {name!r}"


def _present(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    for side, tensors in (("input", config.input), ("output", config.output)):
        if not tensors:
            yield f"it has no {side}{' that is not a state' if artifact.spec.server_state else ''}"


def _dims(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    """'dimension must be integer >= 1, or -1 to indicate a variable-size dimension'."""
    for tensor in (*config.input, *config.output):
        bad = [dim for dim in tensor.dims if dim < 1 and dim != -1]
        if bad:
            yield (
                f"tensor {tensor.name!r} has dims {list(tensor.dims)}; each is at least 1, or -1"
                " for dynamic"
            )


def _types(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    """tensorrt_backend reports 'unsupported datatype' when an instance starts."""
    if config.backend != "tensorrt":
        return
    for tensor in (*config.input, *config.output):
        dtype = by_config(pb.DataType.Name(tensor.data_type))
        if not dtype.tensorrt:
            yield (
                f"tensor {tensor.name!r} is {dtype.name}, which TensorRT does not"
                " support: cast it in the model"
            )


def _batch(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    """Triton does not compare max_batch_size with the profiles: the first full batch would fail."""
    size = config.max_batch_size
    if not size:
        return
    reach = max(
        (spans[2][0] for ranges in artifact.ranges() for spans in ranges.values()),
        default=0,
    )
    if size > reach:
        yield f"max_batch_size {size} is beyond the profiles' maximum, {reach}"


def _profiles(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    """Only a TensorRT model may name profiles, and only profiles of its plan."""
    for group in config.instance_group:
        if group.profile and config.backend != "tensorrt":
            yield "an instance group names profiles, which only TensorRT models support"
        if any(
            not index.isdigit() or int(index) >= len(artifact.profiles)
            for index in group.profile
        ):
            yield (
                f"profiles {list(group.profile)} are not all among the plan's"
                f" {len(artifact.profiles)}"
            )


def _instances(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    for group in config.instance_group:
        if group.kind == pb.ModelInstanceGroup.KIND_CPU and (
            group.gpus or config.backend == "tensorrt"
        ):
            yield (
                "an instance group of KIND_CPU lists GPUs, or its model is a TensorRT"
                " plan"
            )
        if group.count < 1:
            yield f"an instance group has {group.count} instances"


def _optional(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    """tensorrt_backend requires every input of the engine in every request, and otherwise fails the
    whole batch. The Python runtime needs a default.
    """
    for tensor in config.input:
        if tensor.optional and config.backend != "python":
            yield f"input {tensor.name!r} is optional, and only the Python runtime fills it in"
        elif tensor.optional and tensor.name not in artifact.spec.defaults:
            yield f"input {tensor.name!r} is optional, and the manifest has no default for it"
    for name in artifact.spec.defaults.keys() - {
        tensor.name for tensor in config.input
    }:
        yield f"input {name!r} has a default, and the endpoint does not have the input"


def _warmup(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    """A failing warm-up makes the load fail."""
    for sample in config.model_warmup:
        if sample.batch_size > max(config.max_batch_size, 1):
            yield (
                f"warm-up {sample.name!r} has batch {sample.batch_size}, max_batch_size is"
                f" {config.max_batch_size}"
            )


def _states(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    """A state is kept in a buffer of fixed size. A plan's state has no reshape, so it needs an axis
    beside the batch.
    """
    for state, io in sequences.pairs(artifact):
        dims = sequences.row(io, config.max_batch_size)
        if any(dim < 1 for dim in dims):
            batched = ""
            if not config.max_batch_size:
                batched = f": {batching.choose(artifact).reason}"
            yield (
                f"state {state.input!r} has shape {list(io.shape)}, and a server keeps"
                f" state of a fixed shape only{batched}; fix its axes in the manifest,"
                f" or sequences: {{mode: explicit}}"
            )
        if config.backend == "tensorrt" and not dims:
            yield (
                f"state {state.input!r} has no axis other than the batch: add one in the"
                " model, or use --serve-as python"
            )


def _implicit_states(config: pb.ModelConfig, artifact: ModelArtifact) -> Iterator[str]:
    """The order of states in the config must be that of their names.

    Triton's core passes the n-th output by name to the n-th input by name. It ignores the pairs in
    the config, and so swaps states without an error (triton-inference-server/server issue 8586,
    open at 25.12).
    """
    states = config.sequence_batching.state
    for state in states:
        dtype = by_config(pb.DataType.Name(state.data_type))
        if not dtype.tensorrt:
            yield (
                f"state {state.input_name!r} is {dtype.name}, which TensorRT does not"
                " support: cast it in the model"
            )
    inputs = sorted(state.input_name for state in states)
    partners = {state.output_name: state.input_name for state in states}
    if [partners[output] for output in sorted(partners)] != inputs:
        yield (
            f"Triton pairs states by the order of their names, {', '.join(inputs)} with"
            f" {', '.join(sorted(partners))}: use names that sort alike (a_in, a_out,"
            " b_in, b_out), or use --serve-as python"
        )


Rule = Callable[[Any, ModelArtifact], Iterator[str]]
RULES: tuple[Rule, ...] = (
    _names,
    _present,
    _dims,
    _types,
    _batch,
    _profiles,
    _instances,
    _optional,
    _warmup,
    _states,
    _implicit_states,
)
