"""The .env that docker-compose reads: which NVIDIA image fits the plans of a repository, and how
sure that is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from builder.errors import PublishError
from builder.triton import releases
from builder.triton.config import tensorrt_version

VARIABLE = "TRITON_IMAGE"
_MARK = "# trt-build: "
_CONFIDENCE = {
    "A": "A, quoted from a public source",
    "B": "B, derived",
    "C": "C, recalled and unverified",
}


def write_env(repository: Path, path: Path | None = None) -> Path:
    """Set TRITON_IMAGE in `path` (.env beside the repository) to the image that fits its plans;
    every other line stays.

    The reason stands there as comments. Raises PublishError where two versions of TensorRT built
    the plans.
    """
    path = path or repository.resolve().parent / ".env"
    ours = image_lines(
        json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(repository.glob("*/*/plan.json"))
        if file.is_file()
    )
    kept = [line for line in _lines(path) if not line.startswith((_MARK, f"{VARIABLE}="))]
    staged = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        staged.write_text("\n".join([*kept, *ours]) + "\n")
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    return path


def image_lines(plan_facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of the .env that name the image for these plans."""
    built = {(facts.get("flavour"), tensorrt_version(facts)) for facts in plan_facts if facts}
    versions = sorted({version for flavour, version in built if flavour == "tensorrt" and version})
    if len(versions) > 1:
        raise PublishError(
            f"the plans were built by TensorRT {' and '.join(versions)}; one container has one"
            " TensorRT",
            fix="build all models of a repository with one TensorRT",
        )
    return _for_version(versions[0]) if versions else _without_backend()


def _for_version(version: str) -> list[str]:
    match = releases.for_tensorrt(version)
    if match is None:
        return [
            f"{_MARK}no known Triton release has TensorRT {version}; name an image that has it",
            f"{VARIABLE}=",
        ]
    release = match.release
    known = " or ".join(".".join(map(str, numbers)) for numbers in release.tensorrt)
    lines = [
        f"{_MARK}TensorRT {version} built the plans; release {release.tag} has {known}",
        (
            f"{_MARK}confidence {_CONFIDENCE.get(release.confidence or '', 'unknown')}"
            f" ({release.source})"
        ),
    ]
    if not match.exact:
        lines.append(
            f"{_MARK}NOT THE SAME VERSION: a plan loads only in the TensorRT that built it;"
            " rebuild, or name another"
        )
    lines.append(
        f"{_MARK}to be sure: docker run --rm {release.image} sh -c 'dpkg -l | grep libnvinfer'"
    )
    return [*lines, f"{VARIABLE}={release.image}"]


def _without_backend() -> list[str]:
    release = releases.newest_known()
    return [
        (
            f"{_MARK}no plan here is for Triton's TensorRT backend (it has none for RTX); any"
            " release serves the"
        ),
        f"{_MARK}Python runtime, which wants torch in the image (and tensorrt_rtx, to run a plan)",
        f"{VARIABLE}={release.image}",
    ]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
