"""Creates warm-up samples from the recorded opt input of each profile, so that ids are in range and
shapes typical.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2 as pb

from builder.triton import graphs
from builder.triton.artifact import Golden, ModelArtifact
from builder.triton.dtypes import by_config

FOLDER = "warmup"
MAX_BYTES = 64 << 20
"""Warm-up data is loaded with the model and stored beside it. Models with larger inputs
have none.
"""


def samples(artifact: ModelArtifact, config: pb.ModelConfig) -> Iterator[Any]:
    """Return one ModelWarmup for each profile's opt golden.

    The data files have the names that `write` uses; dims exclude Triton's batch. None for a model
    with state on the server, because a warm-up request belongs to no sequence.
    """
    if artifact.spec.server_state:
        return
    for golden in _goldens(artifact):
        for name, batch in _batches(golden, config, artifact):
            if name in artifact.no_warmup:
                continue
            sample = pb.ModelWarmup(name=name, batch_size=batch)
            for tensor in config.input:
                data = _element(golden.inputs[tensor.name], config)
                entry = sample.inputs[tensor.name]
                entry.data_type = tensor.data_type
                entry.dims.extend(data.shape or (1,))
                entry.input_data_file = _file(golden, tensor.name)
            yield sample


def _batches(
    golden: Golden, config: pb.ModelConfig, artifact: ModelArtifact
) -> Iterator[tuple[str, int]]:
    """Return (sample, batch) pairs.

    An engine's kernels are chosen for its optimum batch, and each graph of the golden's profile is
    launched once. The Python runtime gains nothing from a large batch.
    """
    if config.backend != "tensorrt" or not config.max_batch_size:
        yield golden.name, 1
        return
    # if profiles have different maximum batches, the config has the smallest
    usual = min(next(iter(golden.inputs.values())).shape[0], config.max_batch_size)
    yield golden.name, usual
    ranges = artifact.ranges()[int(golden.name.removeprefix("p").partition("-")[0])]
    for size in sorted(
        {spec.batch_size for spec in config.optimization.cuda.graph_spec} - {usual}
    ):
        if graphs.holds(ranges, size):
            yield f"{golden.name}-graph-{size}", size


def warmup_requests(
    artifact: ModelArtifact, config: pb.ModelConfig
) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """The name and the inputs of each warm-up request of `config`, with the batch axis and in the
    module's dtypes.

    Triton sends copies of one row, so the inputs may differ from those of every golden.
    """
    files = {
        _file(golden, tensor.name): golden.inputs[tensor.name]
        for golden in artifact.goldens
        for tensor in config.input
    }
    for sample in config.model_warmup:
        inputs = {}
        for tensor in config.input:
            data = _element(files[sample.inputs[tensor.name].input_data_file], config)
            batch = (sample.batch_size,) if config.max_batch_size else ()
            inputs[tensor.name] = np.broadcast_to(data, (*batch, *data.shape)).copy()
        yield sample.name, inputs


def write(artifact: ModelArtifact, config: pb.ModelConfig, folder: Path) -> None:
    """Write the data files of `samples` into <model>/warmup: raw, row-major, one request, in the
    served element type.
    """
    names = {sample.name for sample in config.model_warmup}
    goldens = [golden for golden in artifact.goldens if golden.name in names]
    for golden in goldens:
        (folder / FOLDER).mkdir(exist_ok=True)
        for tensor in config.input:
            dtype = by_config(pb.DataType.Name(tensor.data_type)).numpy
            data = _element(golden.inputs[tensor.name], config).astype(dtype)
            (folder / FOLDER / _file(golden, tensor.name)).write_bytes(
                np.ascontiguousarray(data).tobytes()
            )


def _goldens(artifact: ModelArtifact) -> list[Golden]:
    opts = [
        golden
        for golden in artifact.goldens
        if golden.name.startswith("p") and golden.name.endswith("-opt")
    ]
    filled = [
        golden for golden in opts if all(array.size for array in golden.inputs.values())
    ]
    return [
        golden
        for golden in filled
        if sum(array.nbytes for array in golden.inputs.values()) <= MAX_BYTES
    ]


def _element(array: NDArray[Any], config: pb.ModelConfig) -> NDArray[Any]:
    return array[0] if config.max_batch_size else array


def _file(golden: Golden, tensor: str) -> str:
    return f"{golden.name}-{tensor}.bin"
