"""Post-training quantisation: a lowered graph and calibration batches in, a graph with quantising
nodes out.
"""

from __future__ import annotations

from builder.quantization.quantize import quantize
from builder.quantization.ranges import METHODS
from builder.quantization.results import Layer, Quantised, own

__all__ = ["METHODS", "Layer", "Quantised", "own", "quantize"]
