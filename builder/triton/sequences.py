"""Configures Triton's sequence batching for models that keep state between requests, and writes the
files of initial states.

The configuration uses the oldest strategy. In a direct batch every open sequence has a row, and
rows without a request are also executed. An engine would then need a READY input and a mask to keep
their state. The oldest strategy batches only sequences with a waiting request, at most one request
of each. The model needs no change, and paused streams cost nothing. A state with an initial value
needs no START input. The Python backend sees START, END and the correlation id in every request. So
no control tensor is created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2 as pb

from builder.manifest import State
from builder.triton import dtypes
from builder.triton.artifact import IO, ModelArtifact

FOLDER = "initial_state"


def batching(
    message: pb.ModelConfig,
    artifact: ModelArtifact,
    served: Mapping[str, str],
    platform: str,
) -> None:
    """Fill in `sequence_batching`.

    Triton keeps the state only for plans (implicit state). The Python backend always receives a
    sequence's initial state, because it cannot return a new one. There, the Python runtime keeps
    the state.
    """
    sequences = message.sequence_batching
    settings = artifact.spec.sequences
    sequences.max_sequence_idle_microseconds = settings.idle_us
    sequences.oldest.max_candidate_sequences = settings.max
    sequences.oldest.preferred_batch_size.extend(artifact.spec.batching.preferred)
    sequences.oldest.max_queue_delay_microseconds = (
        artifact.spec.batching.max_queue_delay_us
    )
    if platform == "tensorrt_plan":
        for state, io in pairs(artifact):
            _state(
                sequences.state.add(),
                state,
                io,
                served[io.name],
                message.max_batch_size,
            )


def _state(
    entry: pb.ModelSequenceBatching.State,
    state: State,
    io: IO,
    dtype: str,
    max_batch: int,
) -> None:
    dims = row(io, max_batch)
    data_type = pb.DataType.Value(dtypes.by_name(dtype).config)
    entry.input_name = state.input
    entry.output_name = state.output
    entry.data_type = data_type
    entry.dims.extend(dims)
    start = entry.initial_state.add(name=state.input, data_type=data_type)
    start.dims.extend(dims)
    if state.initial is None:
        start.zero_data = True
    else:
        start.data_file = state.input


def pairs(artifact: ModelArtifact) -> Iterator[tuple[State, IO]]:
    """Each state that the server keeps, with its input."""
    inputs = {io.name: io for io in artifact.inputs}
    return ((state, inputs[state.input]) for state in artifact.spec.server_state)


def row(io: IO, max_batch: int) -> tuple[int, ...]:
    """The shape of one sequence's state, without Triton's batch."""
    return io.shape[1:] if max_batch else io.shape


def write(
    artifact: ModelArtifact, served: Mapping[str, str], max_batch: int, folder: Path
) -> None:
    """Write the files of `initial_state` into a model's folder: raw, row-major, one sequence, in
    the served element type.
    """
    for state, io in pairs(artifact):
        if state.initial is None:
            continue
        (folder / FOLDER).mkdir(exist_ok=True)
        data = start(state, io, max_batch).astype(dtypes.by_name(served[io.name]).numpy)
        (folder / FOLDER / state.input).write_bytes(
            np.ascontiguousarray(data).tobytes()
        )


def start(state: State, io: IO, max_batch: int) -> NDArray[Any]:
    """Read the file and reshape it to one sequence's state. The file may have a batch axis of size
    1 at any position.
    """
    array: NDArray[Any] = np.load(str(state.initial), allow_pickle=False)
    return array.reshape(row(io, max_batch))


def described(
    artifact: ModelArtifact, dtype: Mapping[str, str], max_batch: int
) -> list[dict[str, Any]]:
    """The states for plan.json and trt-build.json; `shape` is that of one sequence."""
    return [
        {
            "input": state.input,
            "output": state.output,
            "dtype": dtype[io.name],
            "shape": list(row(io, max_batch)),
            "initial": f"{FOLDER}/{state.input}" if state.initial else "zeros",
        }
        for state, io in pairs(artifact)
    ]
