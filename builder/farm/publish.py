"""From the store into the repositories: one for each target, published as `promote` does."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from builder.errors import EnvironmentProblem
from builder.store import SIDECAR, Folders, Hashes, Publication, edits, published
from builder.triton import history


def publish(store: Folders, key: str, repository: Path, *, accept: bool = False) -> str:
    """Publish the model that the store has under the key into `repository`; the answer is
    "unchanged" or "edited" (by hand) where it is there already, else "published". The model appears
    whole or not at all.

    Raises UsageError and PublishError as `trt-build promote` does, and EnvironmentProblem where the
    store has not all of it.
    """
    found = store.find(key)
    if found is None:
        raise EnvironmentProblem(
            f"the store does not have what a task has published under {key}",
            fix="check that all machines use the same store and TRT_BUILD_STORE_KEY",
        )
    if state := _standing(found, repository):
        return state
    with tempfile.TemporaryDirectory(prefix="trt-build-farm-") as scratch:
        folder = store.restore(found, Path(scratch))
        done = history.promote(folder, repository, accept=accept)
    return "unchanged" if done.state == "unchanged" else "published"


def _standing(found: Publication, repository: Path) -> str:
    """ "unchanged" or "edited" (by hand) where all folders of the model are in the repository as
    they were published; else empty.
    """
    with Hashes() as hashes:
        folders = [(repository / name, files) for name, files in found.folders.items()]
        if not all(_same(folder, files, hashes) for folder, files in folders):
            return ""
        return "edited" if edits.notes(repository / found.name, hashes) else "unchanged"


def _same(folder: Path, files: Mapping[str, str], hashes: Hashes) -> bool:
    sidecar = folder / SIDECAR
    if not sidecar.is_file() or hashes.sha256(sidecar) != files.get(SIDECAR):
        return False
    return not any(published.versions(folder)[0].damaged(hashes))
