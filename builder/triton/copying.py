"""Copies folders of published models."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from builder.store import COMPILED


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


def link(source: Path, target: Path) -> None:
    """Hard-link a file if possible, else copy it. Raises OSError."""
    try:
        os.link(source, target)
    except OSError:
        # no hard links: the file system has none, or the file has another owner
        shutil.copy2(source, target)
