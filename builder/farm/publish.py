"""Publishes from the store into one repository for each target, like `promote`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.errors import EnvironmentProblem
from builder.store import SIDECAR, FileSet, Folders, Hashes, edits, published
from builder.triton import history

KIND = "published"
"""The folder of the store with the records of published models."""


def keep(store: Folders, key: str, repository: Path, result: Mapping[str, Any]) -> None:
    """Store the only model of `repository`, with the folders of an ensemble's steps. `result` is
    the build's result as JSON data.
    """
    files = {
        path.relative_to(repository).as_posix(): path
        for folder in sorted(repository.iterdir())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    store.keep(KIND, key, files, result)


def find(store: Folders, key: str) -> FileSet | None:
    """The files of the model with this key, and its result. None if the store does not have all of
    it.
    """
    return store.find(KIND, key, whole=True)


def publish(store: Folders, key: str, folder: Path, *, accept: bool = False) -> str:
    """Publish the model with this key from the store as the model's `folder` of a repository.

    Returns "unchanged" or "edited" (by hand) if it is already there, else "published". Publication
    is atomic.

    Raises UsageError and PublishError as `trt-build promote` does, and EnvironmentProblem if the
    store does not have all of it.
    """
    stored = find(store, key)
    if stored is None:
        raise EnvironmentProblem(
            f"the store lacks the files that a task published under the key {key}",
            fix="check that all machines use the same store and TRT_BUILD_STORE_KEY",
        )
    if state := _published_state(stored, folder):
        return state
    with tempfile.TemporaryDirectory(prefix="trt-build-farm-") as scratch:
        store.restore(stored, Path(scratch))
        source = Path(scratch) / folder.name
        promotion = history.promote(source, folder.parent, accept=accept)
    return "unchanged" if promotion.state == "unchanged" else "published"


def _published_state(stored: FileSet, folder: Path) -> str:
    """Return "unchanged" or "edited" (by hand) if the repository has all folders of the model; else
    empty.
    """
    names = {name.partition("/")[0] for name in stored.files}
    with Hashes() as hashes:
        if not all(_is_same(folder.parent / name, stored, hashes) for name in names):
            return ""
        return "edited" if edits.notes(folder, hashes) else "unchanged"


def _is_same(folder: Path, stored: FileSet, hashes: Hashes) -> bool:
    sidecar = folder / SIDECAR
    if not sidecar.is_file():
        return False
    if hashes.sha256(sidecar) != stored.files.get(f"{folder.name}/{SIDECAR}"):
        return False
    return not any(published.versions(folder)[0].damaged(hashes))
