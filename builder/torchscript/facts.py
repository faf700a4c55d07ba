"""What is known of a TorchScript archive before any of it is loaded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ArchiveFacts:
    """An archive that passed inspection: sizes in bytes, counts, and the classes and globals that its pickles name.

    `traced`: it carries the example inputs of torch.jit.trace.
    """

    path: Path
    root: str
    format_version: int
    file_bytes: int
    unpacked_bytes: int
    weight_bytes: int
    members: int
    classes: tuple[str, ...]
    globals: tuple[str, ...]
    traced: bool


def sha256(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
