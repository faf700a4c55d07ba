"""Loads an untrusted TorchScript file: inspected as an archive, tried in a child
process, then loaded.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
