"""Facts of a server for preflight: of this machine, of a container image, or of a running
endpoint.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.utils import InferenceServerException

from builder.engine import gpu
from builder.errors import UsageError
from builder.serving import Access, find, no_server
from builder.triton import releases

BUNDLED_RELEASE = "24.10"
"""The Triton release in nvidia-pytriton 0.7.0."""
IMAGE_BACKENDS = frozenset({"tensorrt", "python", "pytorch", "onnxruntime", "ensemble"})
"""The backends of NVIDIA's -py3 images: those that trt-build's models may need, and others."""
COMPOSE_SHM_BYTES = 1 << 30
"""The shm_size of docker-compose.yml."""
SHARED_MEMORY = Path("/dev/shm")
_TAG = re.compile(r"(?:^|[:/])(\d\d\.\d\d)(?:-|$)")


@dataclass(frozen=True)
class ServerFacts:
    """The facts of a server. None means unknown, and preflight compares nothing with it.

    `capabilities` and `gpu_memory` (bytes) have one entry for each GPU; they are empty if there is
    none. `cuda` is the newest version that the driver supports. `torch` is whether Python models
    can import torch.
    """

    name: str
    release: releases.Release | None = None
    backends: frozenset[str] | None = None
    capabilities: tuple[str, ...] | None = None
    gpu_memory: tuple[int, ...] | None = None
    cuda: str | None = None
    shm_bytes: int | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    client_shared_memory: bool = False
    torch: bool | None = None


def this_machine(ports: Mapping[str, int]) -> ServerFacts:
    """The tritonserver that `trt-build serve` would start here on `ports` (by flag).

    Raises EnvironmentProblem if there is none.
    """
    installation = find()
    tag = BUNDLED_RELEASE if installation.bundle else None
    devices = gpu.devices()
    return ServerFacts(
        "the tritonserver of this machine",
        _release(tag) if tag else None,
        installation.backends(),
        tuple(".".join(map(str, device.capability)) for device in devices),
        tuple(device.memory for device in devices),
        gpu.driver_version(),
        shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
        ports,
    )


def of_bundle() -> ServerFacts:
    """The tritonserver of nvidia-pytriton in an image built from docker/cpu.Dockerfile."""
    return ServerFacts(
        f"Triton {BUNDLED_RELEASE}",
        _release(BUNDLED_RELEASE),
        frozenset({"python", "ensemble"}),
    )


def of_image(image: str, shm_bytes: int = COMPOSE_SHM_BYTES) -> ServerFacts:
    """NVIDIA's container with this tag ("25.10", "25.10-py3", or with the registry) on this
    machine.

    Raises UsageError for an unknown tag.
    """
    match = _TAG.search(image)
    release = _release(match.group(1)) if match else None
    if release is None:
        raise UsageError(
            f"{image!r} is not a known release of NVIDIA's Triton container",
            fix=f"use a tag such as {releases.releases()[0].tag}, or the name of an image with"
            " that tag",
        )
    devices = gpu.devices()  # no GPU here: the image may be for another host
    return ServerFacts(
        f"Triton {release.tag}",
        release,
        IMAGE_BACKENDS,
        tuple(".".join(map(str, device.capability)) for device in devices) or None,
        tuple(device.memory for device in devices) or None,
        gpu.driver_version(),
        shm_bytes,
        torch=False,
    )


def of_endpoint(url: str, access: Access) -> ServerFacts:
    """The server at `url` (host:port of HTTP), identified by its reported version.

    Raises EnvironmentProblem if nothing answers.
    """
    client = access.http(url, connection_timeout=10.0, network_timeout=10.0)
    try:
        version = str(client.get_server_metadata().get("version"))
    except (InferenceServerException, OSError) as error:
        raise no_server(error, url) from error
    finally:
        client.close()
    known = next(
        (release for release in releases.releases() if release.triton == version), None
    )
    return ServerFacts(f"Triton {version} at {url}", known)


def _release(tag: str) -> releases.Release | None:
    return next(
        (release for release in releases.releases() if release.tag == tag), None
    )
