"""Load an untrusted TorchScript file: inspect the archive, load it in a child process, then load it
in this process.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
