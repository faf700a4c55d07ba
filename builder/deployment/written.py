"""Writes files that the user may edit. Each contains the digest of its lines, so that edited files
are not replaced.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from builder.errors import PublishBlocked, UsageError
from builder.store import staging
from builder.unforeseen import file_system_errors

_HEAD = "# Written by `trt-build deploy`. SHA-256 of the lines below: "
_FIRST_LINE = re.compile(rf"{re.escape(_HEAD)}([0-9a-f]{{64}})\n")


def write(
    folder: Path, texts: Mapping[str, str], *, overwrite: bool = False
) -> list[str]:
    """Write the files to `folder` atomically, and remove those of an earlier run.

    Files that trt-build did not write stay. Returns the names of the changed files.

    Raises UsageError if a file was edited by hand, unless `overwrite`, and PublishBlocked if the
    folder cannot be written.
    """
    before = _earlier_files(folder)
    foreign = [
        name for name in texts if name not in before and os.path.lexists(folder / name)
    ]
    by_hand = [name for name, is_edited in before.items() if is_edited]
    edited = sorted([*foreign, *by_hand])
    if edited and not overwrite:
        raise UsageError(
            f"{', '.join(edited)}: edited by hand, or not written by trt-build",
            where=str(folder),
            fix="put changes into a kustomize overlay beside this folder; --overwrite replaces the"
            " files",
        )
    signed_texts = {name: _signed(text) for name, text in texts.items()}
    stale = before.keys() - signed_texts.keys()
    differing = [
        name for name, text in signed_texts.items() if _text(folder / name) != text
    ]
    changed = sorted([*stale, *differing])
    if changed:
        _exchange(folder, signed_texts, stale)
    return changed


def _signed(text: str) -> str:
    return f"{_HEAD}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def _text(path: Path) -> str | None:
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def _earlier_files(folder: Path) -> dict[str, bool]:
    """The files of an earlier run by name, and whether each was edited since."""
    if not folder.is_dir():
        return {}
    edited_by_name = {}
    for path in sorted(folder.iterdir()):
        text = _text(path) or ""
        if head := _FIRST_LINE.match(text):
            edited_by_name[path.name] = text != _signed(text[head.end() :])
    return edited_by_name


def _exchange(folder: Path, new_texts: Mapping[str, str], stale: set[str]) -> None:
    """Replace the folder with one rename, so that readers never see a partial folder."""
    problem = "cannot write the manifests"
    with (
        file_system_errors(problem, folder, "--out", PublishBlocked),
        staging.without_empty_parents(folder),
    ):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with staging.staging(folder) as beside:
            new = beside / "new"
            if folder.is_dir():
                shutil.copytree(folder, new, symlinks=True)
            new.mkdir(exist_ok=True)
            for name in (*new_texts, *stale):
                (new / name).unlink(missing_ok=True)
            for name, text in new_texts.items():
                (new / name).write_text(text, encoding="utf-8")
            staging.swap(new, folder, beside / "old")
