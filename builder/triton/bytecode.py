"""Keeps Python from writing `__pycache__` into the folders of served models.

Triton treats such a folder as a change of the model. A server with write access to the repository
would load every Python model twice: in poll mode at the next poll, in explicit mode a step with
each ensemble that names it. Triton's stub ignores PYTHONDONTWRITEBYTECODE, and it compiles model.py
before any trt-build code runs. If an empty file of that name exists, Python compiles in memory
only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from builder.store import COMPILED


def prevent(model: Path) -> None:
    """Write the empty files into the version folders of the model.

    trt-build.json does not list them: a repository without them is complete. Raises OSError.
    """
    for folder in set(_compiled(model)):
        compiled = folder / COMPILED
        if not (compiled.exists() or compiled.is_symlink()):
            compiled.touch()


def placed(model: Path) -> list[Path]:
    """The empty files in the model's folder, relative to it."""
    return [
        path.relative_to(model)
        for path in model.rglob(COMPILED)
        if path.is_file() and not path.is_symlink() and path.stat().st_size == 0
    ]


@contextlib.contextmanager
def removed(model: Path) -> Iterator[None]:
    """Remove the empty files for the duration of a `with` block. Raises OSError."""
    files = [model / name for name in placed(model)]
    for file in files:
        file.unlink()
    try:
        yield
    finally:
        for file in files:
            file.touch()


def _compiled(model: Path) -> Iterator[Path]:
    """The folders from which the stub imports Python files: that of model.py and those of its
    packages.
    """
    for entry in model.glob("*/model.py"):
        yield entry.parent
        yield from (package.parent for package in entry.parent.glob("*/__init__.py"))
