"""Run the pipeline for every model of a folder, into a Triton repository."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
