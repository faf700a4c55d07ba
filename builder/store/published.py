"""Check whether a published model is current, from its trt-build.json, without torch."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from builder.errors import UsageError
from builder.store.canonical import digest, normalized
from builder.store.hashes import Hashes
from builder.unforeseen import MACHINES

SIDECAR = "trt-build.json"
CONFIG = "config.pbtxt"
RESULTS = ".results"
"""The suffix of the folder beside a repository with the results of `--record`."""
SIGNATURE = "trt-build.sig"
"""The signature of a model, beside its trt-build.json: see builder.triton.signatures."""
UNFINISHED_SIGNATURE = f".{SIGNATURE}."
"""The start of the name of a signature that is being written, beside its model."""
UNFINISHED = f".{SIDECAR}.*.tmp"
"""The pattern of the file that `write` leaves in a model if its process is killed."""
REQUEST, PLANS, RESULT = "request", "plans", "result"
"""The trt-build.json keys for the request, the keys of its plans, and the result of the build."""
STEPS, SEALS = "steps", "seals"
"""An ensemble's keys for the names of its steps, and for the SHA-256 of each step's
trt-build.json.
"""
SEAL = "seal"
"""The trt-build.json key for the SHA-256 of all other keys."""


FORMAT = 1
"""The version of trt-build.json."""
RETIRED = "retired"
"""The trt-build.json key for the steps that are to be removed, with the Unix time since when."""
DIGITS = 9
"""Maximum number of digits of a version number."""
VERSION, KEPT = "version", "kept"
"""The trt-build.json keys for the model's version number, and for the SHA-256 of the trt-build.json
of each kept earlier version, by number.
"""
UNPUBLISHED = "not published before"
"""The reason to build a model that is not in the repository."""
ROLLED_BACK = "rolled_back_from"
"""The trt-build.json key for the version that `trt-build rollback` replaced by the current one."""
VERSIONS = "versions"
"""The folder with the files of each kept version that are not in its version folder: its config,
trt-build.json, goldens and warm-up.
"""
BUILD_ONE = "build one with trt-build repo MODELS --out REPOSITORY"


def require_repository(repository: Path) -> None:
    """Raise UsageError if the folder `repository` does not exist."""
    if not repository.is_dir():
        problem = "is not a folder" if repository.exists() else "does not exist"
        raise UsageError(f"the model repository {repository} {problem}", fix=BUILD_ONE)


def model_names(repository: Path) -> list[str]:
    """The models of the repository: all of its folders, as in Triton. Raises UsageError if there is
    no repository or no model.
    """
    require_repository(repository)
    names = sorted(path.name for path in repository.iterdir() if path.is_dir())
    if not names:
        raise UsageError(f"{repository} contains no model", fix=BUILD_ONE)
    return names


def recorded_folders(repository: Path) -> list[Path]:
    """The folders of the repository with a trt-build.json, including steps, sorted.

    Raises PermissionError for a folder that this user cannot read: its model would be left out.
    """
    return [folder for folder in sorted(repository.iterdir()) if _has_record(folder)]


def _has_record(folder: Path) -> bool:
    if folder.name == "lost+found":  # of a file system, for root only
        return False
    file = folder / SIDECAR
    try:
        file.stat()
    except PermissionError:
        raise
    except OSError:
        return False
    if not os.access(file, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    return True


@contextlib.contextmanager
def shaped(folder: Path) -> Iterator[None]:
    """Convert errors inside the block to UsageError if the files in `folder` have another structure
    than trt-build writes.

    Examples are missing keys, other types, or a folder in place of a file.
    """
    try:
        yield
    except (
        LookupError,
        AttributeError,
        TypeError,
        ValueError,
        ArithmeticError,
    ) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
    except RecursionError:
        reason = "it is nested too deeply"
    except OSError as error:
        if error.errno in MACHINES or isinstance(error, BrokenPipeError):
            raise
        reason = str(error)
    else:
        return
    raise UsageError(
        f"{folder.name!r} differs from the form that trt-build writes: {reason}",
        where=str(folder),
        fix=_newer(folder) or "build the model again",
    )


def _newer(folder: Path) -> str | None:
    """The fix for a record that a later version wrote; None for other records."""
    number = read(folder / SIDECAR).get("format")
    if isinstance(number, int) and number > FORMAT:
        return (
            f"use the trt-build that wrote it: {SIDECAR} has format {number}, and this version"
            f" reads {FORMAT}"
        )
    return None


def special(folder: Path) -> Iterator[tuple[Path, str]]:
    """The special files in the folder of a published model, and the kind of each: neither regular
    files nor folders.

    The folder itself is included. A link may point to any file of this machine, and reading a pipe
    never ends.
    """
    for path in (folder, *sorted(folder.rglob("*"))):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            yield (
                path,
                "a link" if stat.S_ISLNK(mode) else "a pipe, a socket or a device",
            )


def read(file: Path) -> dict[str, Any]:
    """The content of a trt-build.json; empty if it is not a regular file or has no JSON object.

    Raises PermissionError.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return {}
        record = json.loads(file.read_text(encoding="utf-8"))
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def flavor_of(facts: Mapping[str, Any]) -> str | None:
    """The flavor in the facts of a published plan. Before 0.2, its key was spelled `flavour`."""
    flavor = facts.get("flavor", facts.get("flavour"))
    return None if flavor is None else str(flavor)


def write(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the trt-build.json of the model in `folder`, completely and with its seal. Raises
    OSError.
    """
    content = normalized({key: value for key, value in record.items() if key != SEAL})
    staged = folder / f".{SIDECAR}.{os.getpid()}.tmp"
    try:
        staged.write_text(
            json.dumps({**content, SEAL: digest(content)}, indent=2) + "\n"
        )
        staged.replace(folder / SIDECAR)
    finally:
        staged.unlink(missing_ok=True)


def is_sealed(record: Mapping[str, Any]) -> bool:
    """Whether the content of a trt-build.json is unchanged since `write`."""
    content = {key: value for key, value in record.items() if key != SEAL}
    return record.get(SEAL) == digest(content)


def sidecar(folder: Path) -> dict[str, Any] | None:
    """The content of the model's trt-build.json; None if it cannot be read, or trt-build did not
    write it.
    """
    record = read(folder / SIDECAR)
    return record if record and _shaped(record) and _stays_inside(record) else None


def recorded_steps(record: Mapping[str, Any]) -> list[str]:
    """The names of an ensemble's steps in its record, which may be damaged."""
    return [step for step in record.get(STEPS) or () if isinstance(step, str)]


def _stays_inside(record: dict[str, Any]) -> bool:
    names = [name for key in (STEPS, SEALS, RETIRED) for name in record.get(key, ())]
    files = record.get("files", {})
    kept_versions = record.get(KEPT, {})
    number = record.get(VERSION, 1)
    return (
        all(_is_file(name) for name in files)
        and all(_is_file(name) and "/" not in name for name in names)
        and all(
            key.isascii() and key.isdigit() and len(key) <= DIGITS
            for key in kept_versions
        )
        and type(number) is int
        and 0 < number < 10**DIGITS
    )


def _is_file(name: object) -> bool:
    """Whether the name is that of a file below a folder."""
    return (
        isinstance(name, str)
        and name not in ("", ".")
        and "\0" not in name
        and PurePosixPath(name).as_posix() == name
        and not {"..", "/"} & set(PurePosixPath(name).parts)
    )


def _shaped(record: dict[str, Any]) -> bool:
    shapes: dict[str, type] = {
        REQUEST: dict,
        PLANS: dict,
        RESULT: dict,
        "files": dict,
        STEPS: list,
        SEALS: dict,
        VERSION: int,
        KEPT: dict,
        RETIRED: dict,
    }
    plans = record.get(PLANS)
    for name, shape in shapes.items():
        if not isinstance(record.get(name, shape()), shape):
            return False
    return not isinstance(plans, dict) or all(map(_is_plan, plans.values()))


def _is_plan(record: object) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("parts"), dict):
        return False
    return {"key", "because"} <= set(record)


@dataclass(frozen=True)
class Version:
    """One version of a published model.

    `record` is the folder with its config, trt-build.json and goldens. For the current version it
    is the folder `model` itself. The files of the version folder are in `model`.
    """

    number: int
    model: Path
    record: Path

    @property
    def sidecar(self) -> dict[str, Any]:
        """The content of its trt-build.json; empty if it is not as trt-build wrote it."""
        return sidecar(self.record) or {}

    @property
    def files(self) -> dict[str, Path]:
        """The path of each of its files, by the name that the file has in the folder of a current
        version.
        """
        version_folder = f"{self.number}/"
        paths = {}
        for name in self.sidecar.get("files", {}):
            is_of_version = name.startswith(version_folder)
            paths[name] = (self.model if is_of_version else self.record) / name
        return paths

    def damaged(self, hashes: Hashes | None = None) -> Iterator[str]:
        """The files that are missing or changed, including those of its steps. An edited config
        does not count; a link always does.
        """
        hashes = hashes or Hashes()
        record = self.sidecar
        for folder in (
            self.model,
            *(self.model.parent / step for step in record.get(STEPS, ())),
        ):
            if folder.exists():
                for path, kind in special(folder):
                    yield f"{path.relative_to(folder.parent)} is {kind}"
        sealed = read(self.model / SIDECAR).get(KEPT, {}).get(str(self.number))
        whole = (
            self.record == self.model or _hash(self.record / SIDECAR, hashes) == sealed
        )
        if not is_sealed(record) or not whole:
            yield SIDECAR
            return
        for name, path in self.files.items():
            if _hash(path, hashes) != record["files"][name] and not _is_edit(path):
                yield name
        for step in record.get(STEPS, ()):
            yield from (
                f"../{step}/{name}"
                for name in _of_step(self.model, record, step, hashes)
            )


def versions(folder: Path) -> list[Version]:
    """The versions of a published model: the current one, then the kept ones, newest first. Empty
    if trt-build published none there.
    """
    record = sidecar(folder)
    if record is None:
        return []
    numbers = sorted(
        (int(key) for key in record.get(KEPT, {}) if key.isdigit()), reverse=True
    )
    earlier = [
        Version(number, folder, folder / VERSIONS / str(number)) for number in numbers
    ]
    return [Version(number_of(record), folder, folder), *earlier]


def number_of(record: Mapping[str, Any]) -> int:
    """The version number in a trt-build.json, by default 1."""
    number = record.get(VERSION, 1)
    return number if isinstance(number, int) else 1


def current(folder: Path) -> str:
    """The name of the current version's folder in a published model."""
    return str(number_of(read(folder / SIDECAR)))


def current_folder(folder: Path) -> Path:
    """The current version's folder in a published model."""
    return folder / current(folder)


def step_names(folder: Path) -> set[str]:
    """The steps that the current and the kept versions of an ensemble name."""
    return {
        step
        for version in versions(folder)
        for step in version.sidecar.get(STEPS) or ()
        if isinstance(step, str)
    }


def record(
    folder: Path,
    request: Mapping[str, Any],
    plans: Mapping[str, Any],
    result: Mapping[str, Any],
) -> None:
    """Add the request, and the result to report, to the trt-build.json of a published model. Raises
    OSError.

    A model that was published but not recorded is built again. That is safe; a recorded model that
    was not published would not be.
    """
    write(
        folder,
        {**(sidecar(folder) or {}), REQUEST: request, PLANS: plans, RESULT: result},
    )


def reason_to_rebuild(
    folder: Path, request: Mapping[str, Any], hashes: Hashes
) -> str | None:
    """The reason why the model in `folder` is not current for the `request`; None if it is.

    Every file of the model, and of the steps of an ensemble, must be as it was written.
    """
    from builder.store.differences import because

    record = sidecar(folder)
    if record is None:
        return UNPUBLISHED
    if REQUEST in record and not is_sealed(record):
        return f"{SIDECAR} of the published model is damaged"
    before = record.get(REQUEST)
    if not isinstance(before, dict):
        return f"{SIDECAR} has no record of a build, as after trt-build merge"
    if before != request:
        return because(before, request)
    # an edited config is not damage: see builder.store.edits
    broken = next(
        (name for name in damaged(folder, hashes) if not _is_edit(folder / name)), None
    )
    return f"{broken} of the published model is damaged" if broken else None


def _is_edit(file: Path) -> bool:
    return file.name == CONFIG and file.is_file()


def damaged(folder: Path, hashes: Hashes | None = None) -> Iterator[str]:
    """The files of a published model that are missing or changed, including those of its steps
    (`../<step>/<file>`).

    Each file is compared with the trt-build.json, and that of each step with the ensemble's.
    """
    hashes = hashes or Hashes()
    record = sidecar(folder)
    if record is None or not is_sealed(record):
        yield SIDECAR
        return
    yield from _changed(folder, record, hashes)
    for step in record.get(STEPS, ()):
        yield from (
            f"../{step}/{name}" for name in _of_step(folder, record, step, hashes)
        )


def _of_step(
    folder: Path, record: Mapping[str, Any], step: str, hashes: Hashes
) -> Iterator[str]:
    """The damaged files of one step."""
    step_folder = folder.parent / step
    step_record = sidecar(step_folder)
    broken = SEALS in record and _hash(step_folder / SIDECAR, hashes) != record[
        SEALS
    ].get(step)
    if step_record is None or broken:
        yield SIDECAR
    else:
        yield from _changed(step_folder, step_record, hashes)


def _changed(folder: Path, record: Mapping[str, Any], hashes: Hashes) -> Iterator[str]:
    for name, expected in record.get("files", {}).items():
        if _hash(folder / name, hashes) != expected:
            yield name


def _hash(path: Path, hashes: Hashes) -> str | None:
    try:
        if path.is_file():
            return hashes.sha256(path)
        return None
    except PermissionError:
        raise  # the file may be intact
    except OSError:
        return None
