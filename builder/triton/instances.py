"""Instance groups: how many instances of a model run, and which of them share one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.triton import releases
from builder.triton.artifact import ModelArtifact

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

SHARED_INSTANCES = "trt_build.shared_instances"
"""The parameter with the number of instances that the Python runtime runs in each process."""
FIRST_RELEASE = "24.10"
"""The first Triton release with which shared instances were tested. Python models can send
responses from threads since mid-2024 (python_backend pull request 364). Before, the runtime answers
one request at a time. In the first releases with it, a model with shared instances may not unload
(python_backend pull request 373).
"""


def add(message: pb.ModelConfig, artifact: ModelArtifact, platform: str) -> None:
    """Set the count and the profiles of the instance groups. Each group has every profile: the
    scheduler selects an instance without looking at shapes.

    Instances that share an engine are one instance for Triton, with the number as a parameter.
    """
    shared = artifact.spec.runtime.share_engine and not _obstacle(artifact, platform)
    count = 1 if shared else artifact.spec.instances
    for group in message.instance_group:
        group.count = group.count or count
        if platform == "tensorrt_plan" and len(artifact.profiles) > 1:
            group.profile[:] = [str(index) for index in range(len(artifact.profiles))]
    if shared and artifact.spec.instances > 1:
        message.parameters[SHARED_INSTANCES].string_value = str(artifact.spec.instances)


def warnings(artifact: ModelArtifact, platform: str) -> tuple[str, ...]:
    """The warning about instances that cannot share one engine, though the manifest requests it."""
    if not artifact.spec.runtime.share_engine:
        return ()
    if reason := _obstacle(artifact, platform):
        return (f"runtime.share_engine has no effect: {reason}",)
    if artifact.spec.instances < 2:
        return ()
    return _old_server(str(artifact.plan_facts.get("tensorrt", "")))


def _obstacle(artifact: ModelArtifact, platform: str) -> str | None:
    if platform != "python":
        return (
            f"{platform} serves the model, and only the Python runtime shares engines"
        )
    if artifact.step_of:
        # an input of a step may be released as soon as the runtime has accepted the request
        return f"the model is a step of the ensemble {artifact.step_of!r}"
    if artifact.spec.server_state:
        return "each instance keeps the state of its own sequences"
    groups = artifact.spec.triton.get("instance_group", ())
    if any(group.get("count", 1) > 1 for group in groups):
        return "triton.instance_group has a count: use `instances` instead"
    return None


def _old_server(tensorrt: str) -> tuple[str, ...]:
    match = releases.for_tensorrt(tensorrt)
    if match is None or match.release.tag >= FIRST_RELEASE:
        return ()
    return (
        f"runtime.share_engine requires Triton {FIRST_RELEASE} or later, and the newest"
        f" release for TensorRT {tensorrt} is {match.release.tag}: there, the model runs"
        " one request at a time",
    )
