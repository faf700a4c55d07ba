"""Every model of a folder through the pipeline, into a Triton repository."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
