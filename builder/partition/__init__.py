"""Partition a graph into TensorRT and torch segments, as few as the graph allows."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
