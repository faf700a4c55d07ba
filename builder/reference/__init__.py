"""Evaluates an INetworkDefinition on the CPU with torch, so that a network's numbers can be checked
without a GPU.

It is based only on TensorRT's documentation of each layer, not on the converters. `run` reads the
layers back from the network. It agrees with TensorRT about the dtype and shape of every tensor, or
raises NetworkEvaluationError.
"""

from __future__ import annotations

from builder.reference.evaluate import inspect, run

__all__ = ["inspect", "run"]
