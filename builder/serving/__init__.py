"""Runs tritonserver processes: the one bundled with nvidia-pytriton, or one on the PATH."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
