"""Triton ModelConfig, model folder layout, publication, and the TensorRT version of each
container.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
