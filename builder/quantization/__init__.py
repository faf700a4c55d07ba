"""Post-training quantization: a lowered graph and calibration batches in, a graph with quantizing
nodes out.
"""

from __future__ import annotations

from builder.quantization.quantize import quantize
from builder.quantization.ranges import METHODS
from builder.quantization.results import Layer, Quantized, own

__all__ = ["METHODS", "Layer", "Quantized", "own", "quantize"]
