"""Copies folders of published models."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from builder.errors import PublishError
from builder.store import COMPILED

AGAIN = "run the command again"


def copy(source: Path, folder: Path, *, links: bool = False) -> None:
    """Copy a model into `folder`, which is created if missing, without files that Python compiled
    while the model was served. With `links`, files are hard links if possible.

    Stops at the first error. shutil.copytree would continue on a full disk, and then report every
    file without an errno. Raises OSError.
    """
    copy_file = link if links else shutil.copy2
    folder.mkdir(exist_ok=True)
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if COMPILED in name.parts:
            continue
        if path.is_dir():
            (folder / name).mkdir()
        elif path.is_file():
            copy_file(path, folder / name)


def identity(folder: Path) -> tuple[int, int]:
    """What distinguishes the folder of a published model from the one that replaces it. Raises
    OSError.
    """
    state = folder.stat()
    return state.st_dev, state.st_ino


def is_replaced(folder: Path, before: tuple[int, int]) -> bool:
    """Whether the identity of the folder is no longer `before`."""
    try:
        return identity(folder) != before
    except FileNotFoundError:
        return True


def require_same(folder: Path, before: tuple[int, int]) -> None:
    """Raise PublishError if another process has replaced the model in `folder` since its identity
    was `before`: what was read from it since then may be of two models.
    """
    if is_replaced(folder, before):
        raise PublishError(
            f"another process replaced {folder.name!r} while it was read",
            where=str(folder),
            fix=AGAIN,
        )


def link(source: Path, target: Path) -> None:
    """Hard-link a file if possible, else copy it. Raises OSError."""
    try:
        os.link(source, target)
    except OSError:
        # no hard links: the file system has none, or the file has another owner
        shutil.copy2(source, target)
