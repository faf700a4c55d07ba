"""Writes the .env file for Docker Compose: the service to start, the NVIDIA image for the
repository's plans, and the confidence of that choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder import files
from builder.errors import PublishError
from builder.store import published
from builder.triton import releases
from builder.triton.config import tensorrt_version

VARIABLE = "TRITON_IMAGE"
PROFILES = "COMPOSE_PROFILES"
REPOSITORY = "MODEL_REPOSITORY"
BEGIN = "# >>> written by trt-build repo; lines outside this block are never changed"
END = "# <<< trt-build"
_MARK = "# trt-build: "
_CONFIDENCE = {
    "A": "A, quoted from a public source",
    "B": "B, derived",
    "C": "C, recalled and unverified",
}


def write_env(repository: Path) -> Path:
    """Write the variables of docker-compose.yml to a block in the .env beside the repository.

    The block sets COMPOSE_PROFILES (gpu if Triton's TensorRT backend runs the plans, else cpu),
    MODEL_REPOSITORY and TRITON_IMAGE, with the reasons as comments. Lines outside the block stay,
    and variables that they set are omitted from it. The file keeps its mode, and a link its target.
    Raises PublishError if two versions of TensorRT built the plans, or the file is not text.
    """
    path = repository.resolve().parent / ".env"
    with published.shaped(repository):
        facts = plan_facts(repository)
        built = [*profile_lines(facts), *image_lines(facts)]
    users_lines = _users(_lines(path))
    variables = [f"{REPOSITORY}=./{repository.resolve().name}", *built]
    block = [BEGIN, *_commented_out(variables, _variables(users_lines)), END]
    text = "\n".join([*users_lines, *block]) + "\n"
    files.write_text(path.resolve(), text, keep_mode=True)
    return path


def plan_facts(repository: Path) -> list[Any]:
    """The plan.json of the current versions of each model. Raises OSError, ValueError."""
    return [
        json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(repository.glob("*/*/plan.json"))
        if file.is_file() and not _is_earlier(file.parent)
    ]


def _is_earlier(version: Path) -> bool:
    """Whether the folder belongs to a kept version, which may have been built by another
    TensorRT.
    """
    earlier = published.versions(version.parent)[1:]
    return version.name in {str(entry.number) for entry in earlier}


def image_for(repository: Path) -> str | None:
    """NVIDIA's image whose TensorRT loads the plans of `repository`.

    None if no plan is for Triton's TensorRT backend. Raises PublishError if two versions of
    TensorRT built the plans or no known image has the version, UsageError for files that trt-build
    did not write.
    """
    with published.shaped(repository):
        facts = plan_facts(repository)
        if not _runs_on_gpu(facts):
            return None
        version = _one_version(facts)
    match = releases.for_tensorrt(version) if version else None
    if match is None:
        raise PublishError(
            f"no known Triton release has TensorRT {version}",
            where=str(repository),
            fix="name an image that has it",
        )
    return match.release.image


def _runs_on_gpu(plan_facts: Iterable[Mapping[str, Any]]) -> bool:
    return any(
        published.flavor_of(facts) == "tensorrt" for facts in plan_facts if facts
    )


def profile_lines(plan_facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of the .env that select the service of docker-compose.yml."""
    if _runs_on_gpu(plan_facts):
        return [f"{_MARK}Triton's TensorRT backend runs the plans", f"{PROFILES}=gpu"]
    return [
        f"{_MARK}no plan is for Triton's TensorRT backend: torch runs the models on the"
        " CPU",
        f"{PROFILES}=cpu",
    ]


def _users(lines: Sequence[str]) -> list[str]:
    """The user's lines: those outside the block, without a TRITON_IMAGE that an earlier version of
    trt-build wrote below its comments.
    """
    users_lines: list[str] = []
    inside = after_mark = False
    for line in lines:
        if line in (BEGIN, END):
            inside = line == BEGIN
            continue
        is_written_image = line.startswith(_MARK) or (
            after_mark and line.startswith(f"{VARIABLE}=")
        )
        after_mark = line.startswith(_MARK)
        if not (inside or is_written_image):
            users_lines.append(line)
    return users_lines


def _variables(lines: Iterable[str]) -> set[str]:
    words = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return {
        name.strip() for name, equals, _ in words if equals and not name.startswith("#")
    }


def _commented_out(lines: Iterable[str], names: set[str]) -> list[str]:
    """The lines, with those that set one of `names` commented out."""
    result = []
    for line in lines:
        name, _, _ = line.partition("=")
        if name in names:
            line = f"{_MARK}set above, so not here: {line}"
        result.append(line)
    return result


def image_lines(plan_facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of the .env that name the image for these plans."""
    version = _one_version(plan_facts)
    return _for_version(version) if version else _without_backend()


def _one_version(plan_facts: Iterable[Mapping[str, Any]]) -> str | None:
    """The TensorRT version that built the plans for Triton's backend. Raises PublishError for
    several.
    """
    built = {
        (published.flavor_of(facts), tensorrt_version(facts))
        for facts in plan_facts
        if facts
    }
    versions = sorted(
        {version for flavor, version in built if flavor == "tensorrt" and version}
    )
    if len(versions) > 1:
        raise PublishError(
            f"the plans were built by TensorRT {' and '.join(versions)}; one container has one"
            " TensorRT",
            fix="build all models of a repository with one TensorRT",
        )
    return versions[0] if versions else None


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
        f"{_MARK}Python runtime, which requires torch in the image (tensorrt_rtx to run a plan)",
        f"{VARIABLE}={release.image}",
    ]


def _lines(path: Path) -> list[str]:
    try:
        if path.exists() and not path.is_file():  # reading a pipe would block
            raise OSError("it is not a regular file")
        if path.exists():
            return path.read_text(encoding="utf-8").splitlines()
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise PublishError(
            f"cannot read the environment file of Docker Compose: {error}",
            where=str(path),
            fix="make it a readable UTF-8 text file, or move it away",
        ) from error
