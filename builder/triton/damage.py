"""Finds files of a published model that have changed since publication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.torchscript import sha256

EDITED = "config.pbtxt"
"""Files that users may edit: changes in them are not damage."""


def damaged(folder: Path, files: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Compare the files with their SHA-256 in trt-build.json. Returns each file that differs, and
    whether it exists.
    """
    for name, expected in sorted(files.items()):
        file = folder / name
        if name != EDITED and not (file.is_file() and sha256(file) == expected):
            yield name, file.is_file()
