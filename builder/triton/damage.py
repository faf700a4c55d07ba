"""What of a published model is no longer as it was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.torchscript import sha256

KEPT = (".plan", ".pt")
"""Text that people change by hand, as the config, is not held against it."""


def damaged(folder: Path, files: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Of the files by their SHA-256, as trt-build.json has them: each plan and weight that is
    another one, and whether there is one at all.
    """
    for name, expected in sorted(files.items()):
        file = folder / name
        if file.suffix in KEPT and not (file.is_file() and sha256(file) == expected):
            yield name, file.is_file()
