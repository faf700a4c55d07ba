"""Takes a TorchScript file that nobody vouches for: inspected as an archive, tried in a child process, then loaded."""

from __future__ import annotations

from builder.torchscript.archive import inspect
from builder.torchscript.facts import ArchiveFacts, sha256
from builder.torchscript.loading import load

__all__ = ["ArchiveFacts", "inspect", "load", "sha256"]
