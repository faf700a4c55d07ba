"""Publishes from the store into one repository for each target, like `promote`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from builder.errors import EnvironmentProblem
from builder.store import SIDECAR, Folders, Hashes, Publication, edits, published
from builder.triton import history


def publish(store: Folders, key: str, repository: Path, *, accept: bool = False) -> str:
    """Publish the model with this key from the store into `repository`.

    Returns "unchanged" or "edited" (by hand) if it is already there, else "published". Publication
    is atomic.

    Raises UsageError and PublishError as `trt-build promote` does, and EnvironmentProblem if the
    store does not have all of it.
    """
    publication = store.find(key)
    if publication is None:
        raise EnvironmentProblem(
            f"the store lacks the files that a task published under the key {key}",
            fix="check that all machines use the same store and TRT_BUILD_STORE_KEY",
        )
    if state := _published_state(publication, repository):
        return state
    with tempfile.TemporaryDirectory(prefix="trt-build-farm-") as scratch:
        folder = store.restore(publication, Path(scratch))
        promotion = history.promote(folder, repository, accept=accept)
    return "unchanged" if promotion.state == "unchanged" else "published"


def _published_state(publication: Publication, repository: Path) -> str:
    """Return "unchanged" or "edited" (by hand) if the repository has all folders of the model; else
    empty.
    """
    with Hashes() as hashes:
        folders = [
            (repository / name, files) for name, files in publication.folders.items()
        ]
        if not all(_is_same(folder, files, hashes) for folder, files in folders):
            return ""
        if edits.notes(repository / publication.name, hashes):
            return "edited"
        return "unchanged"


def _is_same(folder: Path, files: Mapping[str, str], hashes: Hashes) -> bool:
    sidecar = folder / SIDECAR
    if not sidecar.is_file():
        return False
    if hashes.sha256(sidecar) != files.get(SIDECAR):
        return False
    return not any(published.versions(folder)[0].damaged(hashes))
