"""Writes the cluster manifests for a repository."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from builder.choices import PLATFORMS
from builder.deployment.container import Document
from builder.deployment.kserve import kserve
from builder.deployment.kubernetes import kubernetes
from builder.deployment.workload import Settings, Workload, workload
from builder.deployment.written import write

_OBJECTS: dict[str, Callable[[Workload], dict[str, Document]]] = dict(
    zip(PLATFORMS, (kubernetes, kserve), strict=True)
)


@dataclass(frozen=True)
class WrittenManifests:
    """The folder with the manifests, all files in it, the changed files, and the workload."""

    folder: Path
    files: tuple[str, ...]
    changed: tuple[str, ...]
    workload: Workload


def deploy(
    platform: str,
    repository: Path,
    out: Path,
    settings: Settings,
    *,
    overwrite: bool = False,
) -> WrittenManifests:
    """Write the manifests that serve `repository` to `out`/`platform`.

    The same repository and settings produce the same bytes. Files that were edited by hand are
    replaced only with `overwrite`.

    Raises UsageError for invalid settings and edited files, PublishError if no image has the plans'
    TensorRT, and EnvironmentProblem if the image cannot serve the repository.
    """
    work = workload(repository, settings)
    texts = {
        f"{name}.yaml": _yaml(document)
        for name, document in _OBJECTS[platform](work).items()
    }
    changed = write(out / platform, texts, overwrite=overwrite)
    return WrittenManifests(out / platform, tuple(texts), tuple(changed), work)


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes multi-line text as a block and never writes aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(document: Document) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100)
