"""What TensorRT runs and what stays in torch, as few pieces as the graph allows."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
