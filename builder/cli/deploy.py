"""`trt-build deploy`: write manifests that serve a repository in a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import deployment
from builder.choices import PLATFORMS
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal, command_line
from builder.errors import UsageError
from builder.report import size

if TYPE_CHECKING:
    from builder.deployment import Settings, WrittenManifests

OF_THE_BASE = (
    "max_replicas",
    "pending",
    "storage_secret",
    "storage_image",
    "monitoring_namespace",
)
"""Options of the kustomize base alone."""
_SIZE = re.compile(r"([1-9][0-9]{0,6})(Mi|Gi)")

UNITS: Mapping[str, int] = {"Mi": 1 << 20, "Gi": 1 << 30}
"""The bytes of each unit that --memory accepts."""


@command(
    "deploy",
    "trt-build deploy kubernetes model_repository --image REGISTRY/NAME:TAG",
)
@click.argument("platform", type=click.Choice(PLATFORMS))
@click.argument("repository", type=options.PATH)
@options.path(
    "--out",
    "-o",
    default="deploy",
    metavar="DIR",
    help="The manifests are written to DIR/kubernetes or DIR/kserve.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Name of the objects. [default: the repository's name, with hyphens]",
)
@click.option("--namespace", metavar="NAME", help="Namespace of the objects.")
@click.option(
    "--storage",
    metavar="URL",
    help="Where the cluster reads the repository: pvc://CLAIM/PATH, s3://BUCKET/PATH,"
    " gs://BUCKET/PATH or as://ACCOUNT/CONTAINER/PATH. [default: pvc://NAME-models]",
)
@click.option(
    "--image",
    metavar="IMAGE",
    help="Container image. [default: NVIDIA's Triton image whose TensorRT can load the plans]",
)
@options.count(
    "--gpus",
    minimum=0,
    help="GPUs of each replica. [default: 1, or as many as the instance groups use; 0 without "
    "plans]",
)
@options.count(
    "--cpus",
    help="CPUs of each replica. [default: one for each Python process]",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory of each replica, such as 8Gi. [default: an estimate]",
)
@options.count("--replicas", default=2, help="The fewest servers.")
@options.count(
    "--max-replicas",
    help="Maximum replicas of the autoscaler (kubernetes). Equal to --replicas: no autoscaler. "
    "[default: twice --replicas]",
)
@options.count(
    "--pending",
    help="Queued requests of a replica above which the autoscaler adds one (kubernetes). "
    "[default: one full batch of each instance]",
)
@click.option(
    "--control-secret",
    metavar="NAME",
    help="Let clients with the `token` of this secret load and unload models.",
)
@click.option(
    "--storage-secret",
    metavar="NAME",
    help="A secret with the environment variables of the object storage (kubernetes).",
)
@click.option(
    "--storage-image",
    metavar="IMAGE",
    help="The image that copies the repository from object storage (kubernetes)."
    " [default: KServe's storage initializer]",
)
@click.option(
    "--monitoring-namespace",
    metavar="NAME",
    help="The namespace that may read the metrics (kubernetes). [default: monitoring]",
)
@click.option(
    "--node-label",
    "node_labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Use only nodes with this label. Repeatable.",
)
@options.flag(
    "--allow-client-shm", help="Let containers of the same pod register shared memory."
)
@options.flag("--overwrite", help="Replace files that were edited by hand.")
def deploy_command(
    terminal: Terminal,
    /,
    platform: str,
    repository: Path,
    out: Path,
    overwrite: bool,
    **settings: Any,
) -> None:
    """Write the manifests with which Kubernetes or KServe serves REPOSITORY: a kustomize base, or a
    ServingRuntime and an InferenceService. docs/deploy.md explains them.
    """
    unused = [
        option
        for option in OF_THE_BASE
        if platform != "kubernetes" and settings[option] is not None
    ]
    if unused:
        raise UsageError(
            f"--{unused[0].replace('_', '-')} is for kubernetes",
            fix="remove it; KServe has its own setting for it",
        )
    manifests = deployment.deploy(
        platform, repository, out, _settings(repository, settings), overwrite=overwrite
    )
    terminal.result(_as_data(manifests), lambda: show(terminal, manifests))


def _as_data(manifests: WrittenManifests) -> dict[str, Any]:
    work = manifests.workload
    return {
        "folder": manifests.folder,
        "files": manifests.files,
        "changed": manifests.changed,
        "image": work.image,
        "gpus": work.gpus,
        "cpus": work.cpus,
        "memory": work.memory,
        "shared_memory": work.shared_memory,
        "storage": work.settings.storage.url,
        "warnings": work.warnings,
    }


def _settings(repository: Path, settings: dict[str, Any]) -> Settings:
    """Convert the options. Raises UsageError for an invalid value."""
    name = settings.pop("name") or re.sub(
        r"[_.]", "-", repository.resolve().name.lower()
    )
    deployment.check_name(name)
    storage = deployment.Storage.parsed(
        settings.pop("storage") or f"pvc://{name}-models"
    )
    memory = settings.pop("memory")
    labels = settings.pop("node_labels")
    shared = settings.pop("allow_client_shm")
    passed = {key: value for key, value in settings.items() if value is not None}
    return deployment.Settings(
        name=name,
        storage=storage,
        memory=_bytes(memory) if memory else None,
        node_labels=dict(_label(text) for text in labels),
        client_shared_memory=shared,
        **passed,
    )


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--memory {text!r} is not a size",
            fix="use a number with Mi or Gi, such as 8Gi",
        )
    number, unit = match.groups()
    return int(number) * UNITS[unit]


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--node-label {text!r} has no value", fix="write KEY=VALUE")
    return key, value


def show(terminal: Terminal, manifests: WrittenManifests) -> None:
    """Print the files, the resources of a replica, and the next command."""
    work = manifests.workload
    for name in manifests.files:
        state = "written" if name in manifests.changed else "unchanged"
        terminal.line(f"{manifests.folder / name}: {state}")
    terminal.line(f"image {work.image}, repository {work.settings.storage.url}")
    terminal.line(
        f"each replica: {work.gpus} GPUs, {work.cpus} CPUs, {size(work.memory)} of memory, of it"
        f" {size(work.shared_memory)} shared"
    )
    for warning in work.warnings:
        terminal.note(f"warning: {warning}")
    if not terminal.quiet:
        apply = command_line("kubectl", "apply", "-k", manifests.folder)
        terminal.line(f"next: {apply}")
