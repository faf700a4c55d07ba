"""ModelConfig, layout, publication, and which container holds which TensorRT."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
