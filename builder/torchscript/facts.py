"""Facts of a TorchScript archive, read before any of it is loaded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from builder.torchscript.traced import Example


@dataclass(frozen=True)
class ArchiveFacts:
    """An inspected archive: sizes in bytes, counts, and the classes and globals that its pickles
    name.

    `examples` are the inputs of torch.jit.trace, None for one that is not a tensor; empty for a
    scripted module.
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
    examples: tuple[Example | None, ...]


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
