"""Post-training quantization: converts a lowered graph and calibration batches to a graph with
quantizing nodes.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
