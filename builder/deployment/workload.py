"""Computes the container image, GPUs and memory that a repository needs. `trt-build deploy` writes
them into the cluster manifests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.deployment.models import Model, folder_bytes, readable
from builder.deployment.preflight import require_fit
from builder.deployment.server_facts import (
    BUNDLED_RELEASE,
    COMPOSE_SHM_BYTES,
    ServerFacts,
    of_bundle,
    of_image,
)
from builder.errors import PublishError, UsageError
from builder.serving import features
from builder.store import published
from builder.triton import image_for

NVIDIA = "nvcr.io/nvidia/tritonserver"
OWN_IMAGE = (
    "build docker/cpu.Dockerfile, push it to your registry, and give --image"
    " REGISTRY/NAME:TAG"
)
SERVER_BYTES = 1 << 30
"""Memory of the server and of `trt-build serve`."""
GPU_SERVER_BYTES = 3 << 30
"""Additional memory with GPUs: the CUDA context and pinned memory. An estimate, not measured."""
STUB_BYTES = 512 << 20
"""Memory of the process of each Python model instance. Measured with torch's CPU build: 240 MB."""
ROUNDED_BYTES = 256 << 20
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,48}[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_IMAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._/-]*(?::[0-9]+/[A-Za-z0-9._/-]+)?(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
)
_LABEL = re.compile(r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?")
_STORAGE = re.compile(
    r"(s3|gs|as|pvc)://([a-z0-9][a-z0-9.-]{1,252})((?:/[\w.=+-]+)*)/?", re.ASCII
)


@dataclass(frozen=True)
class Storage:
    """The storage from which the cluster reads the repository: a volume claim (`pvc`) or object
    storage.
    """

    scheme: str
    bucket: str
    path: str

    @classmethod
    def parsed(cls, url: str) -> Storage:
        """Parse `s3://BUCKET/PATH`, `gs://BUCKET/PATH`, `as://ACCOUNT/CONTAINER/PATH` or
        `pvc://CLAIM/PATH`.

        Raises UsageError.
        """
        if "@" in url:  # no address needs one: the message does not repeat it
            raise UsageError(
                "--storage has a user name or a password, which would be written to logs",
                fix="remove it; --storage-secret names the secret with the credentials",
            )
        match = _STORAGE.fullmatch(url)
        path = match.group(3).strip("/") if match else ""
        if match is None or any(part in (".", "..") for part in path.split("/")):
            raise UsageError(
                f"{url!r} is not an address of a repository in a cluster",
                fix="use pvc://CLAIM/PATH, s3://BUCKET/PATH, gs://BUCKET/PATH or as://ACCOUNT/CONTAINER/PATH",
            )
        needed = {"pvc": 0, "as": 2}.get(match.group(1), 1)
        parts = path.split("/") if path else []
        if len(parts) < needed:
            raise UsageError(
                f"{url!r} has no path of a repository in the bucket or container",
                fix="copy the repository to a path of its own, and name it",
            )
        return cls(match.group(1), match.group(2), path)

    @property
    def is_claim(self) -> bool:
        """Whether it is a persistent volume claim."""
        return self.scheme == "pvc"

    @property
    def url(self) -> str:
        """The URL for KServe's storage initializer, which identifies Azure by its HTTPS address.

        The initializer copies all objects whose names begin with the path. Without the trailing
        slash, `v1` would include `v10`.
        """
        if self.is_claim:
            return f"pvc://{self.bucket}" + (f"/{self.path}" if self.path else "")
        if self.scheme == "as":
            return f"https://{self.bucket}.blob.core.windows.net/{self.path}/"
        return f"{self.scheme}://{self.bucket}/{self.path}/"


@dataclass(frozen=True)
class Settings:
    """The user's settings. None means that the value is derived. `memory` is in bytes."""

    name: str
    storage: Storage
    namespace: str | None = None
    image: str | None = None
    gpus: int | None = None
    cpus: int | None = None
    memory: int | None = None
    replicas: int = 2
    max_replicas: int | None = None
    pending: int | None = None
    control_secret: str | None = None
    storage_secret: str | None = None
    storage_image: str = "kserve/storage-initializer:v0.15.2"
    client_shared_memory: bool = False
    monitoring_namespace: str = "monitoring"
    node_labels: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise UsageError for values that Kubernetes would reject."""
        check_name(self.name)
        for value, option in (
            (self.namespace, "namespace"),
            (self.control_secret, "control-secret"),
            (self.storage_secret, "storage-secret"),
            (self.monitoring_namespace, "monitoring-namespace"),
        ):
            if value is not None:
                _require(
                    _OBJECT, value, option, "small letters, digits, hyphens and dots"
                )
        for value in (self.image, self.storage_image):
            if value is not None:
                _require(
                    _IMAGE,
                    value,
                    "image",
                    "[REGISTRY/]NAME:TAG, or with @sha256:DIGEST",
                )
        for key, value in self.node_labels.items():
            _require(_LABEL, key, "node-label", "KEY=VALUE as in a node's labels")
            _require(_LABEL, value, "node-label", "KEY=VALUE as in a node's labels")
        if self.replicas > self.most_replicas:
            raise UsageError(
                f"{self.replicas} replicas are more than --max-replicas {self.max_replicas}",
                fix="raise --max-replicas, or lower --replicas",
            )

    @property
    def most_replicas(self) -> int:
        """`max_replicas`, by default twice `replicas`."""
        if self.max_replicas is None:
            return 2 * self.replicas
        return self.max_replicas


def check_name(name: str) -> None:
    """Raise UsageError for a name of objects that Kubernetes would reject."""
    _require(_NAME, name, "name", "small letters, digits and hyphens, at most 50")


def _require(pattern: re.Pattern[str], value: str, option: str, form: str) -> None:
    if not pattern.fullmatch(value):
        raise UsageError(f"--{option} {value!r} is not valid in Kubernetes", fix=form)


@dataclass(frozen=True)
class Workload:
    """The requirements of one replica of a server.

    With `plans`, Triton's TensorRT backend runs the plans in NVIDIA's image. Otherwise it is
    trt-build's image with `trt-build serve`. Sizes are in bytes. `pending` is the number of waiting
    requests of a replica above which another replica is started. `feature_flags` are for the
    response cache and the rate limiter of NVIDIA's image.
    """

    settings: Settings
    image: str
    plans: bool
    gpus: int
    cpus: int
    memory: int
    shared_memory: int
    repository_bytes: int
    pending: int
    warnings: tuple[str, ...] = ()
    feature_flags: tuple[str, ...] = ()


def workload(repository: Path, settings: Settings) -> Workload:
    """Return the workload of `repository`.

    Raises UsageError for invalid settings and if there is no repository, EnvironmentProblem if
    preflight finds that the image cannot serve it.
    """
    settings.check()
    plans, image = _image(repository, settings.image)
    models = readable(repository)
    gpus = _gpus(models, plans) if settings.gpus is None else settings.gpus
    # an instance group without a list of GPUs has its instances on every GPU
    copies = max(1, gpus)
    shared = _shared_memory(models, copies)
    server = replace(_server(image, plans), shm_bytes=shared)
    require_fit(repository, server)
    memory = _requested_memory(settings, _memory(models, gpus, shared), shared)
    changes = settings.control_secret is not None
    stubs = copies * sum(model.instances for model in models if model.is_python)
    return Workload(
        settings,
        image,
        plans,
        gpus,
        settings.cpus or max(1, stubs),
        memory,
        shared,
        sum(folder_bytes(model.folder) for model in models),
        settings.pending or _pending(models),
        tuple(_warnings(models, plans, server)),
        tuple(features.container_flags(repository, changes=changes)),
    )


def _requested_memory(settings: Settings, estimate: int, shared: int) -> int:
    """The memory of a pod, which includes its shared memory. Raises UsageError."""
    memory = settings.memory or estimate
    if memory <= shared:
        raise UsageError(
            f"--memory {memory >> 20}Mi is not more than the shared memory of the models,"
            f" {shared >> 20}Mi",
            fix=f"leave it out: the estimate is {estimate >> 20}Mi",
        )
    return memory


def _image(repository: Path, requested: str | None) -> tuple[bool, str]:
    """Return whether Triton's TensorRT backend runs plans, and the image."""
    published.model_names(repository)
    try:
        compose_image = image_for(repository)
    except PublishError:
        if requested is None:
            raise
        return True, requested
    if compose_image is None and requested is None:
        raise UsageError(
            f"{repository} has no plan for NVIDIA's image, so it needs an image with trt-build",
            fix=OWN_IMAGE,
        )
    if compose_image is None and NVIDIA in str(requested):
        raise UsageError(
            f"{repository} has no plan for NVIDIA's image, and {requested} has no trt-build",
            fix=OWN_IMAGE,
        )
    return compose_image is not None, requested or str(compose_image)


def _server(image: str, plans: bool) -> ServerFacts:
    """Return the facts of the image. The GPUs and drivers of the nodes are unknown."""
    if not plans:
        return replace(of_bundle(), name=f"Triton {BUNDLED_RELEASE} of {image}")
    try:
        facts = of_image(image)
    except UsageError:  # a custom image
        return ServerFacts(image)
    return replace(facts, capabilities=None, gpu_memory=None, cuda=None)


def _gpus(models: list[Model], plans: bool) -> int:
    """Return the number of GPUs that the instance groups name, at least one. Zero without plans for
    Triton's TensorRT backend.
    """
    listed = [
        gpu
        for model in models
        for group in model.config.instance_group
        for gpu in group.gpus
    ]
    if plans:
        return max(listed, default=0) + 1
    return 0


def _shared_memory(models: list[Model], copies: int) -> int:
    """Return the size of /dev/shm for `copies` instances of each group."""
    needed = copies * sum(model.shared_memory for model in models)
    return max(COMPOSE_SHM_BYTES, _rounded(needed))


def _memory(models: list[Model], gpus: int, shared: int) -> int:
    """Return the memory: the files of each instance twice, its process, the server, and
    /dev/shm.
    """
    instances = 0
    for model in models:
        processes = model.instances * (STUB_BYTES if model.is_python else 0)
        instances += processes + model.concurrent * 2 * folder_bytes(model.version)
    instances *= max(1, gpus)
    server = SERVER_BYTES + (GPU_SERVER_BYTES if gpus else 0)
    return _rounded(server + instances + shared)


def _rounded(count: int) -> int:
    return -(-count // ROUNDED_BYTES) * ROUNDED_BYTES


def _pending(models: list[Model]) -> int:
    """Return one full batch for each instance of the model with the fewest simultaneous
    requests.
    """
    served = [model for model in models if not model.steps]
    return min(
        (model.concurrent * (model.config.max_batch_size or 1) for model in served),
        default=1,
    )


def _warnings(models: list[Model], plans: bool, server: ServerFacts) -> list[str]:
    texts = []
    python = [model.name for model in models if model.is_python]
    if plans and python:
        texts.append(
            f"{', '.join(python)}: Triton's Python backend runs torch, which NVIDIA's"
            " image does not have: pass an --image with torch installed"
        )
    built = {
        capability
        for model in models
        if model.runs_plan
        for capability in model.capabilities
    }
    if built:
        texts.append(
            f"plans are for GPUs of compute capability {', '.join(sorted(built))}: choose such"
            " nodes with --node-label"
        )
    if server.release is None and plans:
        texts.append(
            f"{server.name} is not a known release, so its TensorRT was not compared"
        )
    return texts
