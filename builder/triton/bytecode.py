"""Keeps Python from writing `__pycache__` into the folders of served models.

To Triton such a folder is a change of the model. A server that can write the repository would load
every Python model twice: in poll mode at the next poll, in explicit mode a step with each ensemble
that names it. Triton's stub ignores PYTHONDONTWRITEBYTECODE, and it compiles model.py before any
code of ours runs. An empty file of that name has Python compile in memory alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from builder.store import COMPILED


def prevent(model: Path) -> None:
    """Put the empty files into the version folders of the model. They are in no trt-build.json: a
    repository that lost them is whole. Raises OSError.
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
    """Without the empty files during a `with` block. Raises OSError."""
    files = [model / name for name in placed(model)]
    for file in files:
        file.unlink()
    try:
        yield
    finally:
        for file in files:
            file.touch()


def _compiled(model: Path) -> Iterator[Path]:
    """The folders whose Python files the stub imports: model.py's and its packages'."""
    for entry in model.glob("*/model.py"):
        yield entry.parent
        yield from (package.parent for package in entry.parent.glob("*/__init__.py"))
