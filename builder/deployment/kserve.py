"""KServe's ServingRuntime and InferenceService for a repository."""

from __future__ import annotations

from builder.deployment.container import (
    POD_SECURITY,
    Document,
    Ports,
    container,
    placement,
    volumes,
)
from builder.deployment.kubernetes import kustomization, labels
from builder.deployment.workload import Workload

PORTS = Ports(8080, 9000, 8002)
"""The HTTP and gRPC ports, as in KServe's own Triton runtime."""
MODELS = "/mnt/models"
"""The folder into which KServe downloads storageUri."""
CONTAINER = "kserve-container"
FORMAT = "trt-build"


def kserve(work: Workload) -> dict[str, Document]:
    """Return the objects by file name without suffix, one object for each file."""
    objects = {"servingruntime": _runtime(work), "inferenceservice": _service(work)}
    return objects | {"kustomization": kustomization(work, objects)}


def _runtime(work: Workload) -> Document:
    server = container(work, CONTAINER, MODELS, PORTS)
    server["ports"] = [
        {"name": "http1", "containerPort": PORTS.http, "protocol": "TCP"}
    ]
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": work.settings.name, "labels": labels(work)},
        "spec": {
            "annotations": {
                "prometheus.kserve.io/port": str(PORTS.metrics),
                "prometheus.kserve.io/path": "/metrics",
            },
            "supportedModelFormats": [
                {"name": FORMAT, "version": "1", "autoSelect": False}
            ],
            "protocolVersions": ["v2", "grpc-v2"],
            **placement(work),
            "containers": [server],
            "volumes": volumes(work),
        },
    }


def _service(work: Workload) -> Document:
    """Return the InferenceService. Its number of replicas is fixed: KServe's autoscaler has no
    metric of Triton.
    """
    settings = work.settings
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": settings.name,
            "labels": labels(work),
            "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"},
        },
        "spec": {
            "predictor": {
                "minReplicas": settings.replicas,
                "maxReplicas": settings.replicas,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": POD_SECURITY,
                "model": {
                    "modelFormat": {"name": FORMAT, "version": "1"},
                    "runtime": settings.name,
                    "protocolVersion": "v2",
                    "storageUri": settings.storage.url,
                },
            }
        },
    }
