"""A kustomize base for a repository: Deployment, Service, autoscaler, disruption budget, policy."""

from __future__ import annotations

from builder.deployment.container import (
    CONFINED,
    POD_SECURITY,
    Document,
    Ports,
    container,
    placement,
    quantity,
    volumes,
)
from builder.deployment.workload import Workload

PORTS = Ports(8000, 8001, 8002)
MODELS = "/models"
NAME_LABEL = "app.kubernetes.io/name"
GRACE_SECONDS = 40
"""The same value as stop_grace_period in docker-compose.yml."""
QUEUE_METRIC = "nv_inference_pending_request_count"
"""Triton's gauge of waiting requests. The Prometheus adapter sums it for each pod."""
DOWNLOAD_BYTES = 1 << 30
SPARE = 1.25
"""Spare space of the volume to which a repository is copied."""


def kubernetes(work: Workload) -> dict[str, Document]:
    """Return the objects of the base by file name without suffix, one object for each file."""
    objects = {
        "serviceaccount": _object(work, "v1", "ServiceAccount")
        | {"automountServiceAccountToken": False},
        "deployment": _deployment(work),
        "service": _service(work),
        "poddisruptionbudget": _budget(work),
        "networkpolicy": _policy(work),
    }
    if _scales(work):
        objects["horizontalpodautoscaler"] = _autoscaler(work)
    return objects | {"kustomization": kustomization(work, objects)}


def kustomization(work: Workload, objects: dict[str, Document]) -> Document:
    """Return the kustomization, which `kubectl apply -k` reads."""
    fields: Document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
    }
    if work.settings.namespace:
        fields["namespace"] = work.settings.namespace
    return fields | {"resources": [f"{name}.yaml" for name in objects]}


def _scales(work: Workload) -> bool:
    return work.settings.most_replicas > work.settings.replicas


def _object(work: Workload, version: str, kind: str) -> Document:
    name = work.settings.name
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": labels(work)},
    }


def labels(work: Workload) -> dict[str, str]:
    """Return the labels of every object."""
    return {
        NAME_LABEL: work.settings.name,
        "app.kubernetes.io/component": "tritonserver",
        "app.kubernetes.io/managed-by": "trt-build",
    }


def _selector(work: Workload) -> Document:
    return {"matchLabels": {NAME_LABEL: work.settings.name}}


def _deployment(work: Workload) -> Document:
    fields = _object(work, "apps/v1", "Deployment")
    spec: Document = {
        "selector": _selector(work),
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "progressDeadlineSeconds": 1200,
        "template": {
            "metadata": {"labels": labels(work), "annotations": _scraped()},
            "spec": _pod(work),
        },
    }
    # the autoscaler sets the number: each `apply` would reset it
    if not _scales(work):
        spec = {"replicas": work.settings.replicas, **spec}
    return fields | {"spec": spec}


def _scraped() -> dict[str, str]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(PORTS.metrics),
        "prometheus.io/path": "/metrics",
    }


def _server(work: Workload) -> Document:
    server = container(work, "tritonserver", MODELS, PORTS)
    server["ports"] = [
        {"name": name, "containerPort": number, "protocol": "TCP"}
        for name, number in vars(PORTS).items()
    ]
    mount: Document = {"name": "models", "mountPath": MODELS, "readOnly": True}
    storage = work.settings.storage
    if storage.is_claim and storage.path:
        mount["subPath"] = storage.path
    server["volumeMounts"] = [mount, *server["volumeMounts"]]
    # the endpoints drop the pod before it stops answering
    server["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", "5"]}}}
    return server


def _pod(work: Workload) -> Document:
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": _selector(work),
    }
    fields: Document = {
        "serviceAccountName": work.settings.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": POD_SECURITY,
        **placement(work),
        "topologySpreadConstraints": [spread],
    }
    if not work.settings.storage.is_claim:
        fields["initContainers"] = [_download(work)]
    return fields | {
        "containers": [_server(work)],
        "volumes": [_models(work), *volumes(work)],
    }


def _models(work: Workload) -> Document:
    storage = work.settings.storage
    if storage.is_claim:
        claim = {"claimName": storage.bucket, "readOnly": True}
        return {"name": "models", "persistentVolumeClaim": claim}
    size = quantity(int(SPARE * work.repository_bytes) + 1)
    return {"name": "models", "emptyDir": {"sizeLimit": size}}


def _download(work: Workload) -> Document:
    """Return the container that copies the repository before the server starts. The server then
    needs no credentials and never reads a partly written repository.
    """
    settings = work.settings
    amounts = {"cpu": "1", "memory": quantity(DOWNLOAD_BYTES)}
    init_container: Document = {
        "name": "models",
        "image": settings.storage_image,
        "args": [settings.storage.url, MODELS],
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": CONFINED,
        "volumeMounts": [
            {"name": "models", "mountPath": MODELS},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    if settings.storage_secret:
        init_container["envFrom"] = [{"secretRef": {"name": settings.storage_secret}}]
    return init_container


def _service(work: Workload) -> Document:
    ports = [
        {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
        for name, number in vars(PORTS).items()
    ]
    spec = {
        "type": "ClusterIP",
        "selector": _selector(work)["matchLabels"],
        "ports": ports,
    }
    return _object(work, "v1", "Service") | {"spec": spec}


def _autoscaler(work: Workload) -> Document:
    """Return the autoscaler. It adds replicas while requests wait, and removes them only after five
    minutes without.
    """
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": QUEUE_METRIC},
            "target": {"type": "AverageValue", "averageValue": str(work.pending)},
        },
    }
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": work.settings.name}
    spec = {
        "scaleTargetRef": target,
        "minReplicas": work.settings.replicas,
        "maxReplicas": work.settings.most_replicas,
        "metrics": [metric],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
    }
    return _object(work, "autoscaling/v2", "HorizontalPodAutoscaler") | {"spec": spec}


def _budget(work: Workload) -> Document:
    """Return the disruption budget. One replica at a time may be evicted, so that a node can always
    be drained.
    """
    spec = {"maxUnavailable": 1, "selector": _selector(work)}
    return _object(work, "policy/v1", "PodDisruptionBudget") | {"spec": spec}


def _policy(work: Workload) -> Document:
    """Return the network policy.

    Clients in the namespace reach HTTP and gRPC; monitoring reaches the metrics. Outgoing traffic
    is limited to DNS and HTTPS, and allowed only if the repository is downloaded.
    """
    monitoring = {"kubernetes.io/metadata.name": work.settings.monitoring_namespace}
    ingress = [
        {"from": [{"podSelector": {}}], "ports": _tcp(PORTS.http, PORTS.grpc)},
        {
            "from": [{"namespaceSelector": {"matchLabels": monitoring}}],
            "ports": _tcp(PORTS.metrics),
        },
    ]
    download = [{"protocol": "UDP", "port": 53}, *_tcp(53, 443)]
    egress = []
    if not work.settings.storage.is_claim:
        egress = [{"ports": download}]
    spec = {
        "podSelector": _selector(work),
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return _object(work, "networking.k8s.io/v1", "NetworkPolicy") | {"spec": spec}


def _tcp(*numbers: int) -> list[Document]:
    return [{"protocol": "TCP", "port": number} for number in numbers]
