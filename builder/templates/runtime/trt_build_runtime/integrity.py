"""Checks that the files of the model are the published ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIDECAR = "trt-build.json"
NOT_LOADED = ("config.pbtxt", "goldens/")
"""Files that the runtime does not read and that users may change."""


def check(folder: Path, version: str = "1") -> bool:
    """Raise RuntimeError if a file of the model in `folder` is missing or does not have the SHA-256
    in its trt-build.json. For an earlier version that was kept, the files of its version folder are
    compared. Returns False if there is no trt-build.json to compare with.
    """
    file = folder / SIDECAR
    if not file.is_file():
        return False
    files = _read(file)["files"]
    earlier = folder / "versions" / version / SIDECAR
    if earlier.is_file():
        earlier_files = _read(earlier)["files"].items()
        files = {
            name: digest
            for name, digest in earlier_files
            if name.startswith(f"{version}/")
        }
    broken = sorted(_changed_files(folder, files))
    if broken:
        raise RuntimeError(
            "trt-build: "
            + ", ".join(broken)
            + " is not as it was published, so the model is not"
            " loaded; publish it again: trt-build repo"
        )
    return True


def _read(file: Path) -> Any:
    """The content of the sealed trt-build.json."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        seal = record.pop("seal")
        text = json.dumps(record, sort_keys=True, separators=(",", ":"))
        if hashlib.sha256(text.encode()).hexdigest() == seal:
            return record
    except (ValueError, AttributeError, KeyError):
        pass
    raise RuntimeError(
        "trt-build: "
        + SIDECAR
        + " is damaged, so the model is not loaded; publish it again:"
        " trt-build repo"
    )


def _changed_files(folder: Path, files: Any) -> Iterator[str]:
    for name, expected in files.items():
        if not name.startswith(NOT_LOADED) and _sha256(folder / name) != expected:
            yield name


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except PermissionError:
        raise  # the file may be as it was published
    except OSError:
        return "missing"
    return digest.hexdigest()
