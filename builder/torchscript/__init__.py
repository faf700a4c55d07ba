"""Takes a TorchScript file that nobody vouches for: inspected as an archive, tried in a child
process, then loaded.
"""

from __future__ import annotations

from builder.torchscript.archive import inspect
from builder.torchscript.facts import ArchiveFacts, sha256
from builder.torchscript.loading import load
from builder.torchscript.traced import Example

__all__ = ["ArchiveFacts", "Example", "inspect", "load", "sha256"]
