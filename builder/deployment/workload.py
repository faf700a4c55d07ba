"""What a container needs to serve a repository: image, GPUs, memory. `trt-build deploy` writes it
into the manifests of a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.deployment.fitness import require_fit
from builder.deployment.models import Model, folder_bytes, readable
from builder.deployment.server_facts import (
    BUNDLED_RELEASE,
    COMPOSE_SHM_BYTES,
    ServerFacts,
    of_bundle,
    of_image,
)
from builder.errors import PublishError, UsageError
from builder.store import published
from builder.triton import image_for

NVIDIA = "nvcr.io/nvidia/tritonserver"
OWN_IMAGE = (
    "build docker/cpu.Dockerfile, push it to your registry, and give --image REGISTRY/NAME:TAG"
)
SERVER_BYTES = 1 << 30
"""Of the server itself, and of `trt-build serve`."""
GPU_SERVER_BYTES = 3 << 30
"""On top with GPUs: the CUDA context and pinned memory. An estimate, not measured."""
STUB_BYTES = 512 << 20
"""Of the process of each instance of a Python model. Measured with torch's CPU build: 240 MB."""
ROUNDED_BYTES = 256 << 20
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,48}[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_IMAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._/-]*(?::[0-9]+/[A-Za-z0-9._/-]+)?(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
)
_LABEL = re.compile(r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?")
_STORAGE = re.compile(r"(s3|gs|as|pvc)://([a-z0-9][a-z0-9.-]{1,252})((?:/[\w.=+-]+)*)/?", re.ASCII)


@dataclass(frozen=True)
class Storage:
    """Where the cluster reads the repository: `pvc` for a volume claim, else object storage."""

    scheme: str
    bucket: str
    path: str

    @classmethod
    def parsed(cls, url: str) -> Storage:
        """Of `s3://BUCKET/PATH`, `gs://BUCKET/PATH`, `as://ACCOUNT/CONTAINER/PATH` or
        `pvc://CLAIM/PATH`. Raises UsageError.
        """
        if "@" in url:  # which no address needs: the message does not repeat it
            raise UsageError(
                "--storage has a user name or a password, which would be written to logs",
                fix="leave it out; --storage-secret names the secret with the credentials",
            )
        found = _STORAGE.fullmatch(url)
        path = found.group(3).strip("/") if found else ""
        if found is None or any(part in (".", "..") for part in path.split("/")):
            raise UsageError(
                f"{url!r} is no address of a repository in a cluster",
                fix="pvc://CLAIM/PATH, s3://BUCKET/PATH, gs://BUCKET/PATH or as://ACCOUNT/CONTAINER/PATH",
            )
        needed = {"pvc": 0, "as": 2}.get(found.group(1), 1)
        if len(path.split("/")) * bool(path) < needed:
            raise UsageError(
                f"{url!r} has no path of a repository in the bucket or container",
                fix="copy the repository to a path of its own, and name it",
            )
        return cls(found.group(1), found.group(2), path)

    @property
    def is_claim(self) -> bool:
        """Whether it is a volume claim."""
        return self.scheme == "pvc"

    @property
    def url(self) -> str:
        """As KServe's storage initializer takes it, which knows Azure's by its HTTPS address. It
        copies all objects whose names begin with the path: without the slash at the end `v1` would
        bring `v10`, too.
        """
        if self.is_claim:
            return f"pvc://{self.bucket}" + (f"/{self.path}" if self.path else "")
        if self.scheme == "as":
            return f"https://{self.bucket}.blob.core.windows.net/{self.path}/"
        return f"{self.scheme}://{self.bucket}/{self.path}/"


@dataclass(frozen=True)
class Settings:
    """What the user chooses; None for what is derived. `memory` is in bytes."""

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
        """Raise UsageError for a value that Kubernetes would refuse."""
        _require(_NAME, self.name, "name", "small letters, digits and hyphens, at most 50")
        for value, option in (
            (self.namespace, "namespace"),
            (self.control_secret, "control-secret"),
            (self.storage_secret, "storage-secret"),
            (self.monitoring_namespace, "monitoring-namespace"),
        ):
            if value is not None:
                _require(_OBJECT, value, option, "small letters, digits, hyphens and dots")
        for value in (self.image, self.storage_image):
            if value is not None:
                _require(_IMAGE, value, "image", "[REGISTRY/]NAME:TAG, or with @sha256:DIGEST")
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
        """`max_replicas`, or by default twice as many as `replicas`."""
        return 2 * self.replicas if self.max_replicas is None else self.max_replicas


def _require(pattern: re.Pattern[str], value: str, option: str, form: str) -> None:
    if not pattern.fullmatch(value):
        raise UsageError(f"--{option} {value!r} is not valid in Kubernetes", fix=form)


@dataclass(frozen=True)
class Workload:
    """One replica of a server. `plans`: NVIDIA's image, in which Triton's TensorRT backend runs the
    plans; else our own image with `trt-build serve`. Sizes are in bytes. `pending` is the number of
    waiting requests of a replica above which another one is started.
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


def workload(repository: Path, settings: Settings) -> Workload:
    """What `repository` needs. Raises UsageError for invalid settings and where there is no
    repository, EnvironmentProblem where preflight finds that the image cannot serve it.
    """
    settings.check()
    plans, image = _image(repository, settings.image)
    models = readable(repository)
    gpus = _gpus(models, plans) if settings.gpus is None else settings.gpus
    # an instance group without a list of GPUs has its instances on each
    copies = max(1, gpus)
    shared = max(COMPOSE_SHM_BYTES, _rounded(copies * sum(one.shared_memory for one in models)))
    server = replace(_server(image, plans), shm_bytes=shared)
    require_fit(repository, server)
    stubs = copies * sum(model.instances for model in models if model.is_python)
    return Workload(
        settings,
        image,
        plans,
        gpus,
        settings.cpus or max(1, stubs),
        settings.memory or _memory(models, gpus, shared),
        shared,
        sum(folder_bytes(model.folder) for model in models),
        settings.pending or _pending(models),
        tuple(_warnings(models, plans, server)),
    )


def _image(repository: Path, given: str | None) -> tuple[bool, str]:
    """Whether Triton's TensorRT backend is to run plans, and the image."""
    published.require_repository(repository)
    try:
        found = image_for(repository)
    except PublishError:
        if given is None:
            raise
        return True, given
    if found is None and given is None:
        raise UsageError(
            f"{repository} has no plan for NVIDIA's image, so `trt-build serve` runs in our own",
            fix=OWN_IMAGE,
        )
    if found is None and NVIDIA in str(given):
        raise UsageError(
            f"{repository} has no plan for NVIDIA's image, and {given} has no trt-build",
            fix=OWN_IMAGE,
        )
    return found is not None, given or str(found)


def _server(image: str, plans: bool) -> ServerFacts:
    """The facts of the image. Nothing is known of the nodes' GPUs and drivers."""
    if not plans:
        return replace(of_bundle(), name=f"Triton {BUNDLED_RELEASE} of {image}")
    try:
        found = of_image(image)
    except UsageError:  # an image of the user's own
        return ServerFacts(image)
    return replace(found, capabilities=None, gpu_memory=None, cuda=None)


def _gpus(models: list[Model], plans: bool) -> int:
    """One, or as many as instance groups name; none without plans for Triton's TensorRT backend."""
    named = [gpu for model in models for group in model.config.instance_group for gpu in group.gpus]
    return max(named, default=0) + 1 if plans else 0


def _memory(models: list[Model], gpus: int, shared: int) -> int:
    """The files of each instance twice, its process, the server, and /dev/shm, which counts."""
    instances = max(1, gpus) * sum(
        model.instances * (2 * folder_bytes(model.version) + STUB_BYTES * model.is_python)
        for model in models
    )
    server = SERVER_BYTES + (GPU_SERVER_BYTES if gpus else 0)
    return _rounded(server + instances + shared)


def _rounded(count: int) -> int:
    return -(-count // ROUNDED_BYTES) * ROUNDED_BYTES


def _pending(models: list[Model]) -> int:
    """One full batch for each instance of the model that takes the fewest requests at once."""
    served = [model for model in models if not model.steps]
    return min(
        (model.instances * (model.config.max_batch_size or 1) for model in served), default=1
    )


def _warnings(models: list[Model], plans: bool, server: ServerFacts) -> list[str]:
    found = []
    python = [model.name for model in models if model.is_python]
    if plans and python:
        found.append(
            f"{', '.join(python)}: Triton's Python backend runs torch, and NVIDIA's image has none:"
            " give --image with torch installed"
        )
    built = {one for model in models if model.runs_plan for one in model.capabilities}
    if built:
        found.append(
            f"plans are for GPUs of compute capability {', '.join(sorted(built))}: choose such"
            " nodes with --node-label"
        )
    if server.release is None and plans:
        found.append(f"{server.name} is no known release, so its TensorRT was not compared")
    return found
