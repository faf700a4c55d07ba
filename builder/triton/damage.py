"""What of a published model is no longer as it was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.torchscript import sha256

EDITED = "config.pbtxt"
"""What people change by hand is not held against the model."""


def damaged(folder: Path, files: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Of the files by their SHA-256, as trt-build.json has them: each that is another one, and
    whether there is one at all.
    """
    for name, expected in sorted(files.items()):
        file = folder / name
        if name != EDITED and not (file.is_file() and sha256(file) == expected):
            yield name, file.is_file()
