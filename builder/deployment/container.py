"""The server's container, for both Kubernetes and KServe manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from builder.deployment.workload import Workload
from builder.serving import flags
from builder.templates import server_script

Document = dict[str, Any]
"""A Kubernetes object or a part of one, as it is written to YAML."""

USER = 1000
"""The user: `triton-server` in NVIDIA's image, `triton` in trt-build's."""
TMP_BYTES = 1 << 30
"""Size of /tmp, as in docker-compose.yml. Triton starts Python models from there."""
TOKEN_FOLDER = "/etc/trt-build"
HEALTH_SECONDS = 10
START_SECONDS = 600
"""Time until all models have loaded and answered. A slower container is restarted."""
CONFINED: Document = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
POD_SECURITY: Document = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True)
class Ports:
    """The ports of the container."""

    http: int
    grpc: int
    metrics: int


def container(work: Workload, name: str, models: str, ports: Ports) -> Document:
    """Return the container `name` that serves the repository mounted at `models`. The volume mount
    of the repository is not included.
    """
    write_program = _tritonserver if work.plans else _own_image
    program = write_program(work, models, ports)
    mounts: list[Document] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    if work.settings.control_secret:
        mounts.append(
            {"name": "control-token", "mountPath": TOKEN_FOLDER, "readOnly": True}
        )
    return {
        "name": name,
        "image": work.image,
        **program,
        "resources": resources(work),
        "securityContext": CONFINED,
        **_probes(work, models, ports),
        "volumeMounts": mounts,
    }


def volumes(work: Workload) -> list[Document]:
    """Return the volumes of container(): temporary files, shared memory, and the control token."""
    listed: list[Document] = [
        {"name": "tmp", "emptyDir": {"sizeLimit": quantity(TMP_BYTES)}},
        {
            "name": "shared-memory",
            "emptyDir": {"medium": "Memory", "sizeLimit": quantity(work.shared_memory)},
        },
    ]
    if work.settings.control_secret:
        secret = {
            "secretName": work.settings.control_secret,
            "defaultMode": 0o440,
            "items": [{"key": "token", "path": "token"}],
        }
        listed.append({"name": "control-token", "secret": secret})
    return listed


def placement(work: Workload) -> Document:
    """Return the pod fields that select a node."""
    fields: Document = {}
    if work.settings.node_labels:
        fields["nodeSelector"] = dict(sorted(work.settings.node_labels.items()))
    if work.gpus:
        fields["tolerations"] = [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        ]
    return fields


def resources(work: Workload) -> Document:
    """Return the resources. Requests equal limits, so the pod has the QoS class Guaranteed."""
    amounts: Document = {"cpu": str(work.cpus), "memory": quantity(work.memory)}
    if work.gpus:
        amounts["nvidia.com/gpu"] = str(work.gpus)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def quantity(count: int) -> str:
    """Format bytes as a Kubernetes quantity, rounded up to MiB."""
    return f"{-(-count >> 20)}Mi"


def _tritonserver(work: Workload, models: str, ports: Ports) -> Document:
    """Return NVIDIA's image with its entry point unchanged."""
    settings = work.settings
    explicit = settings.control_secret is not None
    shared = settings.client_shared_memory
    environment = {
        "OPTIONAL_FLAGS": " ".join(
            (*flags.optional_flags(shared), *work.feature_flags)
        ),
        "CLOSED_PROTOCOLS": ",".join(flags.closed(shared)),
        "CLOSED_HEADER": flags.CLOSED_HEADER,
    }
    if explicit:
        environment["CONTROL_HEADER"] = flags.CONTROL_HEADER
        environment["CONTROL_TOKEN_FILE"] = f"{TOKEN_FOLDER}/token"
    return {
        "args": [
            "sh",
            "-c",
            # Kubernetes replaces $(NAME) in arguments; $$ is an escaped $
            server_script().read_text(encoding="utf-8").replace("$(", "$$("),
            "tritonserver",
            f"--model-repository={models}",
            *(f"--{name}-port={number}" for name, number in vars(ports).items()),
            *flags.ALWAYS,
            *flags.control(explicit, [flags.ALL]),
        ],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }


def _own_image(work: Workload, models: str, ports: Ports) -> Document:
    """Return trt-build's image, in which `trt-build serve` refuses the same requests."""
    arguments = ["trt-build", "serve", models, "--address=0.0.0.0"]
    arguments += [f"--{name}-port={number}" for name, number in vars(ports).items()]
    arguments.append(f"--timeout={START_SECONDS}")
    if work.settings.control_secret:
        arguments += ["--explicit", f"--control-token-file={TOKEN_FOLDER}/token"]
    if work.settings.client_shared_memory:
        arguments.append("--allow-client-shm")
    return {"args": arguments}


def _probes(work: Workload, models: str, ports: Ports) -> Document:
    """Return the probes. trt-build's image runs `trt-build health`: the pod receives no request
    before each model has passed a golden. NVIDIA's image has only Triton's endpoints.
    """
    ready = {"httpGet": {"path": "/v2/health/ready", "port": ports.http}}
    live = {"httpGet": {"path": "/v2/health/live", "port": ports.http}}
    health = [
        "trt-build",
        "health",
        models,
        f"--url=127.0.0.1:{ports.http}",
        f"--grpc-url=127.0.0.1:{ports.grpc}",
        f"--timeout={HEALTH_SECONDS}",
    ]
    start = ready if work.plans else {"exec": {"command": health}}
    period = 5 if work.plans else 15
    return {
        "startupProbe": {
            **start,
            "periodSeconds": period,
            "timeoutSeconds": 3 * HEALTH_SECONDS,
            "failureThreshold": START_SECONDS // period,
        },
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {
            **live,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
    }
