"""Post-training quantization: a lowered graph and calibration batches in, a graph with quantizing
nodes out.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
