"""Configures CUDA graphs of Triton's TensorRT backend: one for each batch size in the manifest, in
each profile.

The backend captures a graph when an instance starts, and launches it for requests with exactly its
shapes. If it cannot capture a graph, it logs this and runs without.
Without a batch it captures a graph but never launches it (triton-inference-server/server issues
6749 and 7150), so graphs are refused in that case. They are also refused for TensorRT versions
whose graphs returned incorrect numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.triton.artifact import ModelArtifact, Ranges

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


WRONG: dict[tuple[int, ...], str] = {(8, 6): "24.04"}
"""Triton releases by TensorRT version whose backend returned incorrect numbers from CUDA graphs.

Measured on an H100 (2026-11-22, docs/engine.md): all six models were incorrect for the shapes that
have a graph, and hand-written engines of one layer in three of nine configurations.
"""


def warnings(artifact: ModelArtifact, platform: str) -> tuple[str, ...]:
    """The warning about one model that is served on `platform`."""
    if not artifact.spec.batching.graphs or platform != "tensorrt_plan":
        return ()
    return (
        "batching.graphs: CUDA graphs of Triton's TensorRT backend returned wrong"
        f" outputs with release {', '.join(WRONG.values())}, and are not tested with"
        f" TensorRT {artifact.plan_facts.get('tensorrt')}: run `trt-build verify`"
        " against the server",
    )


def add(message: pb.ModelConfig, artifact: ModelArtifact, platform: str) -> None:
    """Write the graph specs into the ModelConfig `message` of a plan. Other platforms have none.

    Raises UsageError for sizes that are not a batch of this model, and for a TensorRT version whose
    graphs are known to return incorrect numbers.
    """
    sizes = sorted(set(artifact.spec.batching.graphs))
    if not sizes or platform != "tensorrt_plan":
        return
    _check(sizes, message.max_batch_size)
    _check_version(str(artifact.plan_facts.get("tensorrt", "")))
    cuda = message.optimization.cuda
    cuda.graphs = True
    for size in sizes:
        for dims in _optimum_shapes(artifact, size):
            spec = cuda.graph_spec.add(batch_size=size)
            for name, lengths in dims:
                spec.input[name].dim.extend(lengths)


def holds(ranges: Ranges, size: int) -> bool:
    """Whether the profile with these ranges includes this batch size."""
    return all(
        least[0] <= size <= greatest[0] for least, _, greatest in ranges.values()
    )


def _check(sizes: list[int], greatest: int) -> None:
    bad = [size for size in sizes if size > greatest]
    if bad:
        if greatest:
            fix = f"use sizes up to {greatest}"
        else:
            fix = "remove batching.graphs, or use a model that Triton batches"
        raise UsageError(
            f"batching.graphs {bad} exceeds the model's maximum batch size, {greatest}",
            fix=fix,
        )


def refused(version: str) -> str | None:
    """Why CUDA graphs are refused with this version of TensorRT; None if they are not."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    release = WRONG.get(numbers)
    if release is None:
        return None
    return (
        "CUDA graphs of Triton's TensorRT backend return wrong outputs with TensorRT"
        f" {version} (seen with release {release}; docs/engine.md)"
    )


def _check_version(version: str) -> None:
    if reason := refused(version):
        raise UsageError(
            f"batching.graphs: {reason}",
            fix="remove batching.graphs, or use --serve-as python, whose graphs are tested",
        )


def _optimum_shapes(
    artifact: ModelArtifact, size: int
) -> list[tuple[tuple[str, tuple[int, ...]], ...]]:
    """The optimum shapes, without the batch, of each profile that includes the batch size. Each
    occurs once.
    """
    usual: list[tuple[tuple[str, tuple[int, ...]], ...]] = []
    for ranges in artifact.ranges():
        if not holds(ranges, size):
            continue
        shapes = tuple((name, opt[1:]) for name, (_, opt, _) in ranges.items())
        if shapes not in usual:
            usual.append(shapes)
    return usual
